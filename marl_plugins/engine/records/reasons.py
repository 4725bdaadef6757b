"""Counts why trajectories of a run failed, were lost, or were left out of training: by kind, with
the last example of each.

The ledger has the numbers; one trajectory of each kind is looked up in the records.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marl_plugins.core.ledger import LONGEST_DETAIL_CHARS
from marl_plugins.engine.records.read import Filter, RunReader


def reasons_of(run: RunReader) -> dict[str, list[dict[str, Any]]]:
    """Returns `failed` and `lost`, of trajectories, and `left_out`, of actions by role, the most
    frequent first.

    Each has its `kind`, the `count` of how many (`of`), the first and the last of its `steps`, and
    the `role`, or the last `example`: where it is recorded, and what was said.

    Raises:
        ConfigurationError: The records cannot be read.
    """
    failed, lost, left_out, generated = ReasonTally(), ReasonTally(), ReasonTally(), Counter[str]()
    trajectories = 0
    for ledger in run.ledgers():
        trajectories += ledger.trajectories
        generated += ledger.generated
        failed.add(ledger.step, ledger.failed)
        lost.add(ledger.step, ledger.lost)
        left_out.add(
            ledger.step,
            {
                (role, why): n
                for role, counts in ledger.left_out.items()
                for why, n in counts.items()
            },
        )
    found: dict[str, list[dict[str, Any]]] = {"failed": [], "lost": [], "left_out": []}
    for what, tally in (("failed", failed), ("lost", lost)):
        for kind, count, steps in tally.most_common():
            reason = {"kind": kind, "count": count, "of": trajectories, "steps": steps}
            found[what].append(reason | {"role": "", "example": example_of(run, kind, steps[1])})
    for (role, why), count, steps in left_out.most_common():
        reason = {"kind": why, "count": count, "of": generated[role], "steps": steps}
        found["left_out"].append(reason | {"role": role, "example": ""})
    return found


class ReasonTally:
    """Counts by key, with the first and the last step of each."""

    def __init__(self) -> None:
        self.counts: Counter[Any] = Counter()
        self.steps: dict[Any, tuple[int, int]] = {}

    def add(self, step: int, counts: Mapping[Any, int]) -> None:
        self.counts.update(counts)
        self.steps |= {key: (self.steps.get(key, (step, step))[0], step) for key in counts}

    def most_common(self) -> Iterator[tuple[Any, int, tuple[int, int]]]:
        for key, count in self.counts.most_common():
            yield key, count, self.steps[key]


def example_of(run: RunReader, kind: str, step: int) -> str:
    """Returns a trajectory of a step with this kind of failure; empty where its record is
    missing."""
    for t in run.trajectories(Filter(steps=(step, step), failure=kind)):
        detail = (
            textwrap.shorten(t.detail, LONGEST_DETAIL_CHARS, placeholder=" ...")
            or "no reason given"
        )
        return f"step {t.step}, task {t.task.id}, sample {t.sample}: {detail}"
    return ""


def markdown(reasons: Mapping[str, Any]) -> list[str]:
    """Returns the lines of the report's sections; none where nothing failed, was lost or was left
    out."""
    titles = {
        "failed": "Failed by the agents",
        "lost": "Lost to infrastructure",
        "left_out": "Left out of training",
    }
    lines: list[str] = []
    for what, title in titles.items():
        if not reasons.get(what):
            continue
        actions = what == "left_out"
        header = (
            ["role", "reason", "actions", "steps"]
            if actions
            else ["kind", "trajectories", "steps", "the last one"]
        )
        rows = [
            [r["role"], r["kind"], share(r), steps_of(r)]
            if actions
            else [r["kind"], share(r), steps_of(r), r["example"] or "-"]
            for r in reasons[what]
        ]
        lines += ["", f"## {title}", "", *table(header, rows)]
    return lines


def sentences(reasons: Mapping[str, Any]) -> list[str]:
    """Returns the same for the console, without examples and reasons by role."""
    if not reasons.get("failed"):
        return []
    kinds = ", ".join(f"{r['kind']} {r['count']}" for r in reasons["failed"])
    count, of = sum(r["count"] for r in reasons["failed"]), reasons["failed"][0]["of"]
    return [f"{count} of {of} training trajectories failed by the agents' own doing: {kinds}."]


def share(reason: Mapping[str, Any]) -> str:
    return f"{reason['count']} of {reason['of']}"


def steps_of(reason: Mapping[str, Any]) -> str:
    first, last = reason["steps"]
    return str(first) if first == last else f"{first} to {last}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a table in Markdown."""
    return [f"| {' | '.join(map(cell, row))} |" for row in [header, ["---"] * len(header), *rows]]


def cell(text: str) -> str:
    """Returns a text that does not end its cell or its line."""
    return " ".join(text.split()).replace("|", "\\|")
