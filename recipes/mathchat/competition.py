"""The plugin of paper.yaml: competition problems from files that the user has, in their public
layouts.

--mathchat.train FILE   AIME 1983 to 2024: trained on, the first --data.max_samples of an order
                        drawn once
--mathchat.aime FILE    AIME 2025: held out
--mathchat.amc FILE     AMC: held out

JSON, JSON Lines or CSV with a column for the problem (`prompt`, `problem`, `question`) and one for
the `answer`, as MAPPA's repository and the sets on the hub have them. An answer of AIME is an
integer from 0 to 999. Without `--mathchat.train` the recipe's generated problems take the files'
place, and the plan says so.
"""

import random
import re
from pathlib import Path

from marl_plugins import (
    ConfigurationError,
    Problem,
    Task,
    at,
    at_least,
    first_of,
    hookimpl,
    read_tasks,
    recipe_file,
)
from marl_plugins.grading import ACCEPTED, number

FILES = {
    "train": "AIME problems to train on, such as AIME_1983_2024.json",
    "aime": "AIME problems that are held out, such as aime_2025.json",
    "amc": "AMC problems that are held out, such as amc.json",
}
ORDER = 42
"""Seed of the order in which a file's problems are taken; the same for every run, so that runs
differ in nothing but theirs."""


@hookimpl
def marl_options(parser):
    group = parser.add_argument_group("competition problems of the recipe mathchat")
    for name, about in FILES.items():
        group.add_argument(f"--mathchat.{name}", type=recipe_file, metavar="FILE", help=about)
    group.add_argument(
        "--mathchat.held_out",
        type=at_least(1),
        default=32,
        metavar="N",
        help="at most so many of each held-out file",
    )


@hookimpl
def marl_configure(run):
    args, problems = run.args.mathchat, []
    if args.train is None:
        if lone := [name for name in FILES if getattr(args, name)]:
            where, got = (
                at(flag=f"mathchat.{lone[0]}"),
                "holds out problems, and none are trained on",
            )
            return [
                Problem(
                    "mathchat.no_training", where, got, fix="give --mathchat.train FILE as well"
                )
            ]
        instead = (
            "--data.prompt_dataset's problems"
            if run.recipe.tasks is None
            else "generated word problems"
        )
        got, fix = (
            f"{instead} take the place of AIME and AMC",
            "for these give --mathchat.train FILE",
        )
        problems.append(Problem("mathchat.generated", got=got, fix=fix, severity="warning"))
    elif not (args.aime or args.amc):
        fix = "give --mathchat.aime FILE, --mathchat.amc FILE or both"
        problems.append(
            Problem(
                "mathchat.nothing_held_out", got="nothing is held out", fix=fix, severity="warning"
            )
        )
    return problems


@hookimpl
def marl_tasks(run, split):
    args = run.args.mathchat
    if args.train is None:
        return None
    if split == "train":
        return problems_of(Path(args.train), "aime", run.args.data.max_samples)
    held_out = [(kind, getattr(args, kind)) for kind in ("aime", "amc") if getattr(args, kind)]
    return [
        task for kind, file in held_out for task in problems_of(Path(file), kind, args.held_out)
    ]


def problems_of(path, kind, limit):
    """Problems of one file in the drawn order, at most `limit`; all of it is checked.

    Args:
        kind: `aime` or `amc`; the tasks' `type`.

    Raises:
        ConfigurationError: The file cannot be read, or an answer is none, each by file and line.
    """
    read = read_tasks(path)
    if read.fields.label is None:
        raise ConfigurationError(
            f"{path}: no column with the answer (`answer`), only "
            f"{', '.join([read.fields.prompt, *read[0].metadata])}; name it "
            "`answer` there"
        )
    tasks, problems = [], []
    for task, place in zip(read, read.places, strict=True):
        label, wrong = label_of(task.label, kind)
        if wrong:
            problems.append(f"{place}: problem {name_of(task)}: {read.fields.label} {wrong}")
        metadata = {
            "type": kind,
            **{key: value for key, value in task.metadata.items() if key != "type"},
        }
        tasks.append(Task(f"{path.stem}/{name_of(task)}", task.prompt, label, metadata))
    if problems:
        raise ConfigurationError(first_of(problems, str(path)))
    random.Random(ORDER).shuffle(tasks)
    return tasks[:limit]


def name_of(task):
    """The name that the file gives a problem, else its number."""
    return str(task.metadata.get("ID", task.id))


def label_of(answer, kind):
    """The label of an answer, and what is wrong with it; several answers that are all right are a
    list."""
    text = ACCEPTED.sub("", str(answer)).strip()
    values = [number(part) for part in re.split(r"\s+or\s+", text)]
    whole = [value is not None and value.denominator == 1 for value in values]
    if kind == "aime" and not all(whole):
        return (
            None,
            f"{answer!r} is no integer, which every answer of AIME is; correct it, or remove the "
            "problem",
        )
    if kind == "aime" and not all(0 <= value <= 999 for value in values):
        return (
            None,
            f"{answer!r} is not between 0 and 999, as every answer of AIME is; correct it, or "
            "remove the problem",
        )
    labels = [
        str(value) if one else part
        for value, one, part in zip(values, whole, re.split(r"\s+or\s+", text), strict=True)
    ]
    return labels if len(labels) > 1 else labels[0], ""
