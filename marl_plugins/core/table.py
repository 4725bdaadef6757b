"""A table of a run for `openrlhf export`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Account = Mapping[str, Mapping[str, Any]]
"""Numbers of what a table has, by role or policy: counts, means, reasons with their counts, or a
first and a last version."""


@dataclass(frozen=True)
class Table:
    """A table of a run. Rows and account are made of the run (`RunReader`), of which actions are
    wanted (`Filter`), and of the words of the command line that `openrlhf export` does not know
    itself.

    Args:
        columns: By name what Arrow keeps them as: a type's name, or a key of `nested_types`
            (marl_plugins/engine/records/tables.py).
        rows: The rows of what is wanted of a run, each by column.
        account: What is printed where no file is named; None: nothing can be.
        plans: Whether it takes the words of a plan: `--recipe`, which it needs, and plugins' flags.
        about: What a row is, for the command's help.
    """

    columns: Mapping[str, str]
    rows: Callable[..., Iterator[dict[str, Any]]]
    account: Callable[..., Account] | None = None
    plans: bool = False
    about: str = ""
