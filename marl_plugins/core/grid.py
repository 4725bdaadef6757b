"""The shape upstream needs: every rank exactly K x accumulation x micro-batch rows.

Upstream's dataloader drops a ragged last micro-batch, a partial accumulation window's gradient is carried into the next
fit, and ranks with different numbers of micro-batches wait for each other forever. With this grid nothing is dropped,
nothing is carried over, and exactly K optimiser steps are taken. The missing places are filled with weightless rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Grid:
    """How one policy's rows are laid out for one fit.

    Args:
        rows: Real rows.
        ranks: Data-parallel ranks.
        micro: Rows per forward on one rank.
        steps: Optimiser steps, K.
        accumulation: Micro-batches per optimiser step on one rank.
    """

    rows: int
    ranks: int
    micro: int
    steps: int
    accumulation: int

    @property
    def window(self) -> int:
        """Rows of one optimiser step on all ranks."""
        return self.accumulation * self.micro * self.ranks

    @property
    def rows_per_rank(self) -> int:
        return self.steps * self.accumulation * self.micro

    @property
    def fill(self) -> int:
        """Weightless rows needed; always fewer than one window, so that no optimiser step can consist of them alone."""
        return self.steps * self.window - self.rows

    def per_rank(self, rows: Sequence[T], filler: T) -> list[list[T]]:
        """The rows of each rank, in order, the fill spread evenly over the ranks' ends."""
        short, extra = divmod(self.fill, self.ranks)
        parts, start = [], 0
        for rank in range(self.ranks):
            fill = short + (rank >= self.ranks - extra)
            stop = start + self.rows_per_rank - fill
            parts.append([*rows[start:stop], *[filler] * fill])
            start = stop
        return parts


def plan_grid(rows: int, ranks: int, micro: int, steps: int) -> Grid | None:
    """The grid for a number of rows, with at most `steps` optimiser steps; None where there is no row to train on.

    K is lowered until fewer than one window of weightless rows is needed.
    """
    if min(ranks, micro, steps) < 1 or rows < 0:
        raise ValueError(f"a grid needs at least one rank, micro-batch row and step, got {ranks}, {micro}, {steps}")
    if not rows:
        return None
    for k in range(steps, 0, -1):
        grid = Grid(rows, ranks, micro, k, ceil(rows / (k * micro * ranks)))
        if grid.fill < grid.window:
            return grid
    raise AssertionError("one step always fits")
