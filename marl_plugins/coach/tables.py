"""The coach's tables of `openrlhf export`: what a coach has said, as data for supervised training
in TRL's conversational formats; and what another coach says of the same actions.

    sft, dpo    corrected actions, as prompt and completion, or as prompt, chosen and rejected
                (corrections.py)
    verdicts    what the coach was asked and what it said, for a judge of one's own (distil.py)
    rejudged    recorded and new scores (rejudge.py)

Without a file the numbers of each role are printed: what could be used, and why the rest could not.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from marl_plugins import Action, Filter, RunReader
from marl_plugins.coach import corrections, distil, rejudge

# inside: tables of a run
from marl_plugins.core.table import Account, Table

Line = tuple[Action, str, dict[str, Any] | None]
"""An action, what became of it, and its row, where it has one."""
Lines = Callable[[RunReader, Filter, Sequence[str]], Iterator[Line]]
ACTION = {
    "task": "string",
    "sample": "int64",
    "step": "int64",
    "action": "string",
    "role": "string",
    "score": "double",
    "outcome": "double",
}
"""Columns that say where a row comes from."""
CORRECTION = {"reason": "string", "tools": "string", **ACTION}


def table_of(
    columns: dict[str, str],
    lines: Lines,
    results: Sequence[str],
    about: str,
    plans: bool = False,
) -> Table:
    """Makes a table of lines, and its account: by role the number of actions, and how many had each
    of the results."""

    def rows(run: RunReader, selection: Filter, words: Sequence[str]) -> Iterator[dict[str, Any]]:
        return (row for _, _, row in lines(run, selection, words) if row is not None)

    def account(run: RunReader, selection: Filter, words: Sequence[str]) -> Account:
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for action, result, _ in lines(run, selection, words):
            counts[action.role].update(["actions", result])
        names = ("actions", *results)
        return {role: {name: count[name] for name in names} for role, count in counts.items()}

    return Table(columns, rows, account, plans, about)


TABLES = {
    "sft": table_of(
        {"prompt": "messages", "completion": "messages", "said": "string", **CORRECTION},
        partial(corrections.lines_of, corrections.sft),
        corrections.RESULTS,
        "corrected actions, as prompt and completion",
    ),
    "dpo": table_of(
        {"prompt": "messages", "chosen": "messages", "rejected": "messages", **CORRECTION},
        partial(corrections.lines_of, corrections.dpo),
        corrections.RESULTS,
        "corrected actions, as prompt, chosen and rejected",
    ),
    "verdicts": table_of(
        {
            "prompt": "messages",
            "completion": "messages",
            "knew_the_label": "bool",
            "by_rules": "bool",
            "fold": "double",
            **ACTION,
        },
        distil.lines_of,
        distil.RESULTS,
        "what a coach was asked and what it said",
        plans=True,
    ),
    "rejudged": Table(
        {"recorded": "double", "missing": "string", "explanation": "string", **ACTION},
        rejudge.rows_of,
        rejudge.account_of,
        plans=True,
        about="recorded scores and another coach's",
    ),
}
