"""Labels that can be recognised wherever they are shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from marl_plugins.core.trajectory import Task

MARK = "labelzqxj"
MARK_OF_NUMBERS = 728915403
MARKS = (MARK, MARK_OF_NUMBERS)
OTHER_MARKS = ("anotherlabelqx", 2718281828)
"""Of another label, which has no part in common with the first."""


def marked(label: Any, marks: tuple[str, int]) -> Any:
    """Returns a label of the same form that occurs nowhere else, to see where it is shown; what
    cannot be marked stays."""
    text, number = marks
    if isinstance(label, str):
        return str(number) if _is_number(label) else text
    if isinstance(label, list | tuple):
        return [marked(item, marks) for item in label]
    if isinstance(label, dict):
        return {key: marked(item, marks) for key, item in label.items()}
    if isinstance(label, bool) or not isinstance(label, int | float):
        return label
    return number if isinstance(label, int) else number + 0.5


def with_marked_label(task: Task, copies: Collection[str], marks: tuple[str, int] = MARKS) -> Task:
    """Returns the task with a label that can be recognised; the same task where it cannot be.

    Args:
        copies: Keys of the metadata under which the label stands too.
    """
    return with_label(task, marked(task.label, marks), copies)


def with_label(task: Task, label: Any, copies: Collection[str]) -> Task:
    """Returns the task with another label."""
    return replace(
        task,
        label=label,
        metadata={k: label if k in copies else v for k, v in task.metadata.items()},
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
