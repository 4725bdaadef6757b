"""Turns rows into what goes through the model: the rows of one conversation merged, so that every
token is computed once.

    row of turn 1:   context 1, sampled 1
    row of turn 2:   context 1, sampled 1, shown 2, sampled 2          (its context extends that of
        turn 1)
    sequence:        the same tokens as turn 2's, with both rows' sampled tokens trained, each with
                     its own advantage

Where several turns continue the same one, the first of them extends its sequence and each other one
has a sequence of its own, whose earlier turns are shown and not trained again: every row is in one
sequence. What such branches, samples of a task and tasks of a role have in common is computed once
per sequence, or, with `--sequences trees`, once (`TokenTree`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action


@dataclass(frozen=True)
class TokenSequence:
    """Rows that go through the model together.

    Args:
        ids: T token ids.
        rows: In the order of their turns.
        starts: Index in `ids` of the first sampled token of each row.
    """

    ids: list[int]
    rows: tuple[Row, ...]
    starts: tuple[int, ...]

    @property
    def name(self) -> str:
        """The last row's, for messages."""
        return self.rows[-1].name

    @property
    def predicted(self) -> Iterator[tuple[Row, slice]]:
        """Yields each row with its sampled tokens' places among the T-1 that are predicted."""
        for row, start in zip(self.rows, self.starts, strict=True):
            yield row, slice(start - 1, start - 1 + len(row.action.generation.ids))

    @cached_property
    def trained(self) -> set[int]:
        """Indices in `ids` of what its rows have sampled."""
        return {n + 1 for _, places in self.predicted for n in range(places.start, places.stop)}


def sequences_of(rows: Sequence[Row], merge: bool = True) -> list[TokenSequence]:
    """Returns the sequences of some rows, in the order of their first rows.

    A turn between two rows that is itself no row (it was left out) is shown in the sequence and not
    trained.

    Args:
        merge: False: one sequence per row.
    """
    if not merge:
        return [_sequence([row]) for row in rows]
    chains: list[list[Row]] = []
    ends: dict[Action, list[Row]] = {}  # the chain that ends with an action
    for row in sorted(rows, key=lambda row: row.action.turn):  # what a turn extends comes before it
        # a turn that was left out is stepped over
        earlier = row.action.chain[-2::-1]
        chain = next((ends.pop(turn) for turn in earlier if turn in ends), None)
        if chain is None:
            chains.append(chain := [])
        chain.append(row)
        ends[row.action] = chain
    place = {row: number for number, row in enumerate(rows)}
    return [_sequence(chain) for chain in sorted(chains, key=lambda chain: place[chain[0]])]


def _sequence(chain: Sequence[Row]) -> TokenSequence:
    """One sequence of rows that extend each other; O(tokens), because turns are stored as deltas
    and no prefix is compared."""
    ids: list[int] = []
    starts: list[int] = []
    mine = {row.action for row in chain}
    for turn in chain[-1].action.chain:
        ids += turn.shown_ids
        if turn in mine:
            starts.append(len(ids))
        ids += turn.generation.ids
    return TokenSequence(ids, tuple(chain), tuple(starts))


@dataclass
class TokenTree:
    """Sequences as one: what they begin with alike stands in it once.

        sequences:   a b c x    a b c y z    a b d w      (w, x, y, z are trained)
        ids:         a b c x  c y z  d w
        mask:        1 1 1 1 -3 1 1 -6 1          (the second c follows b, d follows b)

    A branch that begins with a trained token begins with a copy of the last token that it shares.
    So every trained token stands right behind the one that predicts it, and a loss that shifts by
    one stays as it is. Where two sequences both train a token, there are two: each has an advantage
    of its own for it. A model computes copies and the like once (`distinct`).

    Args:
        ids: T token ids, in the order of a walk through the tree.
        mask: 1, or, where a token does not follow the one before it, how far before it that stands
            which it follows, negative; before the beginning, where it follows none.
        sequences: In the order of their ids.
        places: Of each sequence, the places of its tokens.
        size: The number of its distinct tokens.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    sequences: list[TokenSequence] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)
    size: int = 0
    _trained: set[int] = field(default_factory=set)
    _last: list[int] = field(default_factory=list)
    """The places of the last sequence, with the copies that stand for its tokens."""

    def shared(self, sequence: TokenSequence) -> int:
        """Returns how many tokens a sequence would have in common with the one before it."""
        path = self.places[-1] if self.places else []
        for n, (place, token) in enumerate(zip(path, sequence.ids, strict=False)):
            # one that does not stand behind what it follows cannot be trained
            taken = place in self._trained or self.mask[place] != 1
            if token != self.ids[place] or (n in sequence.trained and taken):
                return n
        return min(len(path), len(sequence.ids))

    def add(self, sequence: TokenSequence, shared: int) -> None:
        """Adds the next sequence, which has so many tokens in common with the one before it."""
        before = self.sequences[-1].ids if self.sequences else []
        pairs = zip(before, sequence.ids, strict=False)
        alike = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
        self.size += len(sequence.ids) - alike
        path, shown = self.places[-1][:shared] if shared else [], self._last[:shared]
        if path and shared in sequence.trained and shown[-1] < len(self.ids) - 1:
            copied = self.ids[shown.pop()]
            shown += self._append([copied], shown)
        added = self._append(sequence.ids[shared:], shown)
        self.sequences.append(sequence)
        self.places.append([*path, *added])
        self._last = [*shown, *added]
        self._trained.update(self.places[-1][n] for n in sequence.trained)

    def _append(self, ids: list[int], path: list[int]) -> range:
        start = len(self.ids)
        back = start - (path[-1] if path else -1)
        self.mask += [1 if back == 1 else -back, *[1] * (len(ids) - 1)][: len(ids)]
        self.ids += ids
        return range(start, len(self.ids))


def distinct(ids: Sequence[int], mask: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns a tree without what it has twice: tokens with the same ids before them have the same
    state.

    Returns:
        Of each of T tokens its place among the distinct ones; and the place that each of these
        follows, -1 for none.
    """
    places: list[int] = []
    follows: list[int] = []
    known: dict[tuple[int, int], int] = {}
    for place, (token, step) in enumerate(zip(ids, mask, strict=True)):
        before = place + (step if step < 0 else -1)
        parent = places[before] if before >= 0 else -1
        number = known.setdefault((parent, token), len(follows))
        if number == len(follows):
            follows.append(parent)
        places.append(number)
    return places, follows


def tree_of(sequences: Iterable[TokenSequence]) -> TokenTree:
    """Returns sequences that are in the order of their ids as one tree."""
    tree = TokenTree()
    for sequence in sequences:
        tree.add(sequence, tree.shared(sequence))
    return tree


def grouped(
    sequences: Sequence[TokenSequence], numbers: Iterable[int], most: int
) -> list[tuple[list[int], int]]:
    """Groups sequences that begin alike into trees: their numbers in the order of their ids, and
    the tree's distinct tokens. Where a tree would save less than a twentieth, they stay by
    themselves.

    Args:
        numbers: Indices of the sequences.
        most: Tokens of a tree; a sequence by itself may have more.
    """
    groups: list[list[int]] = []
    trees: list[TokenTree] = []
    for number in sorted(numbers, key=lambda n: sequences[n].ids):
        sequence, tree = sequences[number], trees[-1] if trees else TokenTree()
        shared = tree.shared(sequence)
        if not shared or len(tree.ids) + len(sequence.ids) - shared + 1 > most:
            trees.append(TokenTree())
            groups.append([])
            shared = 0
        trees[-1].add(sequence, shared)
        groups[-1].append(number)
    made: list[tuple[list[int], int]] = []
    for group, tree in zip(groups, trees, strict=True):
        if tree.size <= 0.95 * sum(len(sequences[n].ids) for n in group):
            made.append((group, tree.size))
        else:
            made += [([n], len(sequences[n].ids)) for n in group]
    return made
