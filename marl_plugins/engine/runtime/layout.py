"""Assigns sequences to ranks, optimiser steps and micro-batches.

    every rank:   K optimiser steps x A micro-batches, the same K and A on all ranks

Upstream's dataloader drops a ragged last micro-batch, a partial accumulation window's gradient is
carried into the next fit, and ranks with different numbers of micro-batches wait for each other for
ever. With this layout nothing is dropped, nothing is carried over, and exactly K optimiser steps
are taken. Micro-batches that are missing are empty: a weightless sequence goes through the model in
their place.

Upstream's loss is a sum over the tokens of an optimiser step divided by their number on all ranks,
so which micro-batch computes a sequence changes nothing. Sequences of similar length share one,
which keeps padding small.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

Tree = Sequence[int]
"""Indices of sequences that go through the model as one (core/sequences.py); or of a single one."""
MicroBatch = tuple[int, ...]
"""Indices of trees; empty: nothing is left for this one."""
Order = Callable[[int, int], Sequence[int]]
"""The order in which a rank takes its sequences in an epoch: (epoch, number of sequences) to a
permutation."""
SizedTree = tuple[Tree, int]
"""With its tokens."""
Grouping = Callable[[Sequence[int], int], Sequence[SizedTree]]
"""Divides sequences into trees of at most so many tokens."""


@dataclass(frozen=True)
class Limit:
    """The limit of how much fits into one micro-batch.

    Args:
        sequences: At most so many.
        tokens: At most so many tokens, in place of the number of sequences.
        packed: Tokens are those of the sequences alone; else padding counts too.
        tree: Tokens of a tree at most, and of several in one micro-batch with their padding; None:
            sequences are no trees.
    """

    sequences: int = 1
    tokens: int | None = None
    packed: bool = False
    tree: int | None = None

    def fits(self, number: int, longest: int, total: int) -> bool:
        """Returns whether a micro-batch may hold a number of sequences.

        Args:
            longest, total: Tokens of the longest, and of all.
        """
        if self.tokens is None:
            padded = self.tree is None or number == 1 or number * longest <= self.tree
            return number <= self.sequences and padded
        return (total if self.packed else number * longest) <= self.tokens


@dataclass(frozen=True)
class Layout:
    """The micro-batches of one fit.

    Args:
        ranks: The trees of each data-parallel rank, as indices.
        steps: Optimiser steps per epoch, K.
        accumulation: Micro-batches per optimiser step on one rank, A.
        epochs: The micro-batches of each epoch and rank: `epochs[epoch][rank]` has K x A of them,
            whose indices count the trees of that rank.
        trees: Without a grouping each sequence is one.
        tokens: Of all trees.
    """

    ranks: tuple[tuple[int, ...], ...]
    steps: int
    accumulation: int
    epochs: tuple[tuple[tuple[MicroBatch, ...], ...], ...]
    trees: Sequence[Tree] = ()
    tokens: int = 0

    @property
    def fill(self) -> int:
        """Empty micro-batches on all ranks, in an epoch; fewest where sequences are many."""
        return sum(not batch for rank in self.epochs[0] for batch in rank)


def plan_layout(
    lengths: Sequence[int],
    ranks: int,
    steps: int,
    limit: Limit,
    order: Order | None = None,
    epochs: int = 1,
    grouping: Grouping | None = None,
) -> Layout:
    """Returns the layout of sequences with these lengths, at least one, in at most `steps`
    optimiser steps.

    K is lowered to the number of sequences, so that no optimiser step is empty.

    Args:
        lengths: Tokens of each sequence.
        order: None: as they are given.
        grouping: None: each sequence goes through the model by itself. Whatever it says, the
            sequences of an optimiser step are the same.

    Raises:
        ValueError: A sequence alone is beyond the limit (its index is the second argument).
    """
    for index, length in enumerate(lengths):
        if not limit.fits(1, length, length):
            raise ValueError(f"a sequence of {length} tokens is beyond {limit.tokens}", index)
    steps = min(steps, len(lengths))
    shares = _shares(lengths, ranks)
    counts = [len(share) for share in shares]
    windows = [
        [_windows(counts, rank, steps, epoch, order) for rank in range(ranks)]
        for epoch in range(epochs)
    ]
    trees: list[SizedTree] = [((i,), length) for i, length in enumerate(lengths)]
    if grouping is not None and limit.tree is not None:
        trees, shares = _grouped(shares, windows, grouping, limit.tree)
    sizes = [size for _, size in trees]
    batches = [
        [
            [
                _batches([sizes[i] for i in shares[rank]], window, limit, max(lengths))
                for window in windows[epoch][rank]
            ]
            for rank in range(ranks)
        ]
        for epoch in range(epochs)
    ]
    most = max(len(window) for epoch in batches for rank in epoch for window in rank)
    filled = tuple(
        tuple(
            tuple(b for window in rank for b in (*window, *[()] * (most - len(window))))
            for rank in epoch
        )
        for epoch in batches
    )
    held = [tree for tree, _ in trees]
    return Layout(tuple(map(tuple, shares)), steps, most, filled, held, sum(sizes))


def _shares(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """The sequences of each rank: numbers that differ by one at most, and similar sums of
    lengths."""
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for turn, start in enumerate(range(0, len(longest_first), ranks)):
        dealt = longest_first[start : start + ranks]
        for rank, index in enumerate(dealt):
            shares[ranks - 1 - rank if turn % 2 else rank].append(index)
    return [sorted(share) for share in shares]


def _windows(
    counts: Sequence[int], rank: int, steps: int, epoch: int, order: Order | None
) -> list[list[int]]:
    """A rank's sequences in the order of its epoch, cut into optimiser steps whose numbers differ
    by one at most.

    The larger ones of a rank follow those of the rank before, so that every step has a sequence
    where there are enough.
    """
    count = counts[rank]
    shuffled = order(epoch, count) if order else range(count)
    base, extra = divmod(count, steps)
    offset = sum(counts[:rank]) % steps
    larger = {(offset + i) % steps for i in range(extra)}
    windows, start = [], 0
    for step in range(steps):
        stop = start + base + (step in larger)
        windows.append([*shuffled[start:stop]])
        start = stop
    return windows


def _grouped(
    shares: list[list[int]], windows: list[list[list[list[int]]]], grouping: Grouping, most: int
) -> tuple[list[SizedTree], list[list[int]]]:
    """The sequences of each optimiser step as trees, and the trees of each rank, which take the
    sequences' places in the windows.

    The largest goes first, each to the rank that has least to do until then; with several ranks
    none has much more than what one of them has to do.
    """
    trees: list[SizedTree] = []
    of_ranks: list[list[int]] = [[] for _ in shares]
    for epoch in windows:
        for step in range(len(epoch[0])):
            mine = [
                share[i] for share, steps in zip(shares, epoch, strict=True) for i in steps[step]
            ]
            step_trees = grouping(mine, most)
            if len(shares) > 1:
                fair = sum(size for _, size in step_trees) / len(shares)
                step_trees = grouping(mine, min(most, int(1.25 * fair)))
            for steps in epoch:
                steps[step] = []
            loads = [0] * len(shares)
            for tree in sorted(step_trees, key=lambda pair: (-pair[1], pair[0])):
                rank = loads.index(min(loads))
                loads[rank] += tree[1]
                epoch[rank][step].append(len(of_ranks[rank]))
                of_ranks[rank].append(len(trees))
                trees.append(tree)
    return trees, of_ranks


def _batches(
    lengths: Sequence[int], window: Sequence[int], limit: Limit, usual: int
) -> list[MicroBatch]:
    """A window's trees as micro-batches: neighbours in length together or, where they are packed,
    whatever fills one. Trees that are longer than the longest sequence (`usual`) are padded by a
    quarter at most."""
    batches: list[list[int]] = []
    totals: list[int] = []
    for index in sorted(window, key=lambda i: (-lengths[i], i)):
        open_ones = (
            range(len(batches))
            if limit.tokens and limit.packed
            else range(max(0, len(batches) - 1), len(batches))
        )
        for number in open_ones:
            batch, total = batches[number], totals[number] + lengths[index]
            longest = lengths[batch[0]]
            even = longest <= usual or longest * (len(batch) + 1) <= 1.25 * total
            if even and limit.fits(len(batch) + 1, longest, total):
                batch.append(index)
                totals[number] = total
                break
        else:
            batches.append([index])
            totals.append(lengths[index])
    return [tuple(batch) for batch in batches]
