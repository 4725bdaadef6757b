"""Labels that can be recognised wherever they are shown."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from marl_plugins.core.trajectory import Task

MARK = "labelzqxj"
MARK_OF_NUMBERS = 728915403


def marked(label: Any) -> Any:
    """Returns a label of the same form that occurs nowhere else, to see where it is shown; what cannot be marked stays."""
    if isinstance(label, str):
        return str(MARK_OF_NUMBERS) if _is_number(label) else MARK
    if isinstance(label, list | tuple):
        return [marked(item) for item in label]
    if isinstance(label, dict):
        return {key: marked(item) for key, item in label.items()}
    if isinstance(label, bool) or not isinstance(label, int | float):
        return label
    return MARK_OF_NUMBERS if isinstance(label, int) else MARK_OF_NUMBERS + 0.5


def with_marked_label(task: Task, copies: Collection[str] = ()) -> Task:
    """Returns the task with a label that can be recognised; the same task where it cannot be.

    Args:
        copies: Keys of the metadata under which the label stands too.
    """
    label = marked(task.label)
    return replace(task, label=label, metadata={k: label if k in copies else v for k, v in task.metadata.items()})


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
