"""The plugin of this recipe: programs with unit tests, from files that the user has.

--data.prompt_dataset FILE --eval.dataset FILE   an object a line: the problem, and its tests as a
                                                 list of Python texts with `assert` (`tests`,
                                                 `test_list` as MBPP has it, or what
                                                 --data.label_key names), or in the layouts of
                                                 DeepCoder, TACO and LiveCodeBench
--reflect.visible N                              the first N tests of each are shown to the agents,
                                                 the others score

Without files the generated tasks of tasks.py take their place.
"""

from contextlib import suppress
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
)
from marl_plugins.sandbox import asserts_of, prepared

SUFFIXES = (".json", ".jsonl", ".csv")
"""Of the files that `read_tasks` reads."""
FIELDS = ("tests", "test_list", "input_output", "private_test_cases")
"""Names of the tests in public data sets."""


@hookimpl
def marl_options(parser):
    group = parser.add_argument_group("programs with unit tests of the recipe reflect")
    group.add_argument(
        "--reflect.visible",
        type=at_least(1),
        default=1,
        metavar="N",
        help="tests of each program that are shown",
    )


@hookimpl
def marl_tasks(run, split):
    flag = "data.prompt_dataset" if split == "train" else "eval.dataset"
    name = run.args.data.prompt_dataset if split == "train" else run.args.eval.dataset
    if not name:
        return None
    path, keys = Path(name), run.args.data
    if path.suffix not in SUFFIXES:
        raise ConfigurationError(
            Problem("reflect.file", at(flag=flag), repr(name), f"a file ({', '.join(SUFFIXES)})")
        )
    input_key = keys.input_key if "data.input_key" in run.given else None
    limit = keys.max_samples if split == "train" else None
    return tasks_of(path, input_key, keys.label_key, limit, run.args.reflect.visible)


def tasks_of(path, input_key, label_key, limit, visible):
    """The programs of a file, their first tests as `visible`, the others as the label.

    Raises:
        ConfigurationError: Every program without enough tests, by file and line.
    """
    read, found, problems = read_tasks(path, input_key, label_key, limit), [], []
    for task, place in zip(read, read.places, strict=True):
        given = (
            task.label
            if label_key
            else next((task.metadata[name] for name in FIELDS if name in task.metadata), None)
        )
        with suppress(ValueError):
            given = asserts_of(given)
        if not isinstance(given, list) or not all(
            isinstance(test, str) and test.strip() for test in given
        ):
            expected = (
                f"a list of tests, each a text with `assert`, in {label_key or ' or '.join(FIELDS)}"
            )
            problems.append(
                Problem(
                    "reflect.tests",
                    at(line=place),
                    "none" if given is None else f"{given!r:.60}",
                    expected,
                )
            )
        elif len(given) <= visible:
            got, expected = (
                f"{len(given)} tests, of which {visible} would be shown",
                "at least one that is hidden",
            )
            problems.append(
                Problem(
                    "reflect.hidden",
                    at(line=place),
                    got,
                    expected,
                    "remove it, or lower --reflect.visible",
                )
            )
        else:
            shown = "\n".join(given[:visible])
            run = shown if "printed(" in shown else prepared("", shown) + shown
            found.append(
                Task(task.id, task.prompt, given[visible:], {"visible": shown, "tests": run})
            )
    if problems:
        raise ConfigurationError(first_of(problems, path))
    return found
