"""A sample of a run that is too large to be shown in one file: of each step an equal share."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from marl_plugins.commands.inspect.index import Entry


def sampled(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Chooses at most so many entries, of each step an equal share, evenly over its tasks."""
    if len(entries) <= most:
        return list(entries)
    steps = [list(group) for _, group in groupby(entries, key=lambda entry: entry.step)]
    share, chosen = max(1, most // len(steps)), list[Entry]()
    for group in steps:
        count = min(share, len(group))
        chosen += [group[place * len(group) // count] for place in range(count)]
    return chosen[:most]


def share_text(chosen: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """Says how many of the entries were chosen."""
    share = (
        "" if len(chosen) == len(entries) else f" of {len(entries):,}, an equal share of each step"
    )
    return f"{len(chosen):,} trajectories{share}"
