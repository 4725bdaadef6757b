"""`openrlhf recipes check RECIPE` tries what a dry run does not.

The grader on answers whose worth is known and on the data's own labels; tasks that are there twice
or in both splits.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl_plugins.core.failures import (
    ConfigurationError,
    InfrastructureFailure,
    RunEnded,
    leaves_of,
)
from marl_plugins.core.problems import as_json
from marl_plugins.core.redaction import inert
from marl_plugins.engine.plan.tasks import check_tasks
from marl_plugins.engine.plan.user_code_thread import failure_of

if TYPE_CHECKING:
    from marl_plugins.contracts.graders import GraderFinding
    from marl_plugins.engine.plan.plan import Plan

MAX_NAMED_ANSWERS = 20
"""Answers of each kind that a table names."""
KNOWN = {
    "right": "right answers are paid",
    "wrong": "wrong answers are not",
    "tricks": "tricks are not",
}
OF_LABELS = {
    "label": "labels are paid as answers",
    "wrong": "wrong answers made of labels are not",
    "empty": "empty answers are not",
    "another task's": "labels of other tasks are not",
}


def check(name: str, as_json_values: bool = False, most: int | None = None) -> int:
    """Checks a recipe and prints what was found; 1 where something is not as it should be.

    Args:
        most: Number of tasks of each split whose labels are graded; None: all.

    Raises:
        ConfigurationError: The recipe cannot be planned, or its workflow, grader or answers.py
            raises something.
    """
    from marl_plugins.contracts.graders import FILE, RecipeGrader, check_grader
    from marl_plugins.contracts.labels import check_labels

    plan = RecipeGrader(name).plan
    with contextlib.redirect_stdout(sys.stderr):  # what a user's code prints is no finding
        problems = [
            problem for problem in check_tasks(plan) if not problem.flags
        ]  # of the data, whatever a run takes of it
        with _mistakes_named(plan):
            known = check_grader(plan) if (plan.run.folder / FILE).is_file() else []
            labels = check_labels(plan, most)
    labels_answer = not known or any(one.fine for one in labels if one.kind == "label")
    twice = {split: _twice(plan, split) for split in ("train", "eval")}
    counted = [one for one in labels if labels_answer or one.kind != "label"]
    fine = not problems and all(a.fine for a in known) and all(one.fine for one in counted)
    if as_json_values:
        print(
            json.dumps(
                {
                    "fine": fine,
                    "answers": [one._asdict() for one in known],
                    "labels": [one._asdict() for one in labels],
                    "labels_are_answers": labels_answer,
                    "data": {
                        "problems": [as_json(problem) for problem in problems],
                        "twice": twice,
                    },
                },
                indent=2,
            )
        )
    else:
        _print(known, labels, counted, map(str, problems), twice)
        print(
            inert(
                f"not rehearsed here: openrlhf train --recipe {shlex.quote(name)} --dry-run tries "
                "the workflow's branches"
            )
        )
    return int(not fine)


@contextlib.contextmanager
def _mistakes_named(plan: Plan) -> Iterator[None]:
    """Makes a problem, at the user's line, of what a recipe's own code raises inside.

    Raises:
        ConfigurationError: It has raised something.
    """
    try:
        yield
    except (ConfigurationError, InfrastructureFailure, RunEnded):
        raise
    except Exception as error:  # the user's code, of any kind
        where, notes = (
            str(plan.run.folder / str(plan.run.recipe.grader or "recipe.yaml")),
            getattr(error, "__notes__", ()),
        )
        failures = [failure_of(leaf, where) for leaf in leaves_of(error)]
        told = [replace(f, text="; ".join(filter(None, [f.text, *notes]))) for f in failures]
        raise ConfigurationError(failure.mistake for failure in told) from error


def _twice(plan: Plan, split: str) -> dict[str, Any]:
    """Returns how many tasks of a split have the prompt, the metadata and the files of an earlier
    one, and some of them."""
    seen, repeated = set[str](), list[str]()
    for task in plan.tasks(split):
        key = repr((task.prompt, task.metadata, task.files))
        repeated += [task.id] if key in seen else []
        seen.add(key)
    return {"count": len(repeated), "tasks": repeated[:MAX_NAMED_ANSWERS]}


def _print(
    known: Sequence[GraderFinding],
    labels: Sequence[GraderFinding],
    counted: Sequence[GraderFinding],
    problems: Iterable[str],
    twice: dict[str, dict[str, Any]],
) -> None:
    from marl_plugins.commands.tables import print_table

    _counts(known, KNOWN)
    if rows := [
        [one.task, one.role, one.kind, one.answer, one.outcome] for one in known if not one.fine
    ]:
        print_table(
            "Not graded as their author says",
            ["task", "role", "kind", "answer", "outcome"],
            _cells(rows),
        )
    if any(one.kind == "tricks" for one in known if not one.fine):
        print(
            "a trick that is right in this recipe belongs into right=[...] of answers.py; what all "
            "are paid, into unpaid="
        )
    labels_answer = len(counted) == len(labels)
    if not labels_answer:
        _failures([one for one in labels if one.kind == "label"])
        print(
            "no label is paid as it stands: the grader wants more than its text; say in answers.py "
            "which answers are right"
        )
    _counts(counted, OF_LABELS)
    missed = [one for one in counted if not one.fine]
    unlike = {(one.kind, one.answer, one.outcome): one for one in reversed(missed)}
    named = [
        one
        for kind in OF_LABELS
        for one in [m for m in reversed(unlike.values()) if m.kind == kind][:MAX_NAMED_ANSWERS]
    ]
    if rows := [[one.task, one.kind, one.answer, one.outcome] for one in named]:
        print_table(
            "Labels that are graded wrongly",
            ["task", "said", "answer", "outcome"],
            _cells(rows),
        )
        if len(missed) > len(named):
            print(f"and {len(missed) - len(named)} more")
    if labels_answer:
        _failures(missed)
    if not labels:
        print("no task has a label that is a text, so no label was graded")
    for problem in problems:
        print(inert(problem))
    for split, repeats in twice.items():
        if repeats["count"]:
            print(
                f"{repeats['count']} {split} tasks are there twice, the first "
                f"{inert(repr(repeats['tasks'][0]))}"
            )


def _failures(missed: Sequence[GraderFinding]) -> None:
    """Prints why the workflow did not come to its end, the most common reason in full."""
    failures = Counter(one.failure for one in missed if one.failure).most_common()
    for failure, count in failures[:1]:
        more = sum(other for _, other in failures[1:])
        rest = f"; and {more} more, of other kinds" if more else ""
        print(inert(f"the workflow failed with {count} of these answers: {failure}{rest}"))


def _counts(findings: Sequence[Any], kinds: dict[str, str]) -> None:
    total, fine = (
        Counter(one.kind for one in findings),
        Counter(one.kind for one in findings if one.fine),
    )
    for kind, what in kinds.items():
        if total[kind]:
            print(f"{fine[kind]} of {total[kind]} {what}")


def _cells(rows: list[list[Any]]) -> list[list[str]]:
    """The last column but one is an answer, which may be long."""
    return [[*map(str, row[:-2]), repr(str(row[-2])[:80]), str(row[-1])] for row in rows]
