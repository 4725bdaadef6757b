"""Turns rows into what goes through the model: the rows of one conversation merged, so that every
token is computed once.

    row of turn 1:   context 1, sampled 1
    row of turn 2:   context 1, sampled 1, shown 2, sampled 2          (its context extends that of
        turn 1)
    sequence:        the same tokens as turn 2's, with both rows' sampled tokens trained, each with
                     its own advantage

Where several turns continue the same one, the first of them extends its sequence and each other one
has a sequence of its own, whose earlier turns are shown and not trained again: every row is in one
sequence. What such branches have in common is computed once per branch, as in TRL and verifiers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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
        chain, turn = None, row.action
        while (
            chain is None and turn.extends and turn.before is not None
        ):  # a turn that was left out is stepped over
            turn = turn.before
            chain = ends.pop(turn, None)
        if chain is None:
            chain = []
            chains.append(chain)
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
