"""A sample of a run that is too large to be shown in one file, evenly over its steps."""

from __future__ import annotations

from collections.abc import Sequence

from marl_plugins.commands.inspect.index import Entry


def sampled(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Chooses at most so many entries, evenly over the steps and their tasks."""
    most = min(most, len(entries))
    return [entries[place * len(entries) // most] for place in range(most)]


def share_text(chosen: Sequence[Entry], entries: Sequence[Entry]) -> str:
    """Says how many of the entries were chosen."""
    share = "" if len(chosen) == len(entries) else f" of {len(entries):,}, evenly over the steps"
    return f"{len(chosen):,} trajectories{share}"
