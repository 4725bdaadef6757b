"""Rows of one conversation as one sequence: every row once, every token in its place, whatever
branches there are."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import conversations

from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory


def rows_with(trajectory, seed, share):
    draw = random.Random(seed)
    rows = [Row(trajectory, a, 1.0) for a in trajectory.actions if draw.random() < share]
    draw.shuffle(rows)  # a plugin may have put them into any order
    return rows


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    turns=st.integers(0, 14),
    share=st.sampled_from([1.0, 0.7, 0.3]),
    merge=st.booleans(),
)
def test_every_row_is_in_one_sequence_with_the_context_that_it_had(seed, turns, share, merge):
    trajectory = conversations(seed, turns)
    rows = rows_with(trajectory, seed, share)
    rows += (
        random.Random(seed).choices(rows, k=seed % 3) if rows else []
    )  # a plugin may have selected some twice
    sequences = sequences_of(rows, merge)
    assert sorted(id(row) for s in sequences for row in s.rows) == sorted(map(id, rows))
    for sequence in sequences:
        stop = 0
        for row, start in zip(sequence.rows, sequence.starts, strict=True):
            assert start >= stop  # no token belongs to two rows
            stop = start + len(row.action.generation.ids)
            assert tuple(sequence.ids[:start]) == row.action.context_ids
            assert tuple(sequence.ids[start:stop]) == row.action.generation.ids
        assert stop == len(sequence.ids)
    if not merge:
        assert [s.rows for s in sequences] == [(row,) for row in rows]


@settings(max_examples=80, deadline=None)
@given(seed=st.integers(0, 10**6), turns=st.integers(1, 12))
def test_a_sequence_is_as_long_as_it_can_be(seed, turns):
    """A row that begins a sequence extends none, or one that another branch has extended first."""
    rows = rows_with(conversations(seed, turns), seed, 0.8)
    sequences = sequences_of(rows)
    extended = {id(a.action) for s in sequences for a in s.rows[:-1]}
    trained = {id(row.action) for row in rows}
    for sequence in sequences:
        earlier = [a for a in sequence.rows[0].action.chain[:-1] if id(a) in trained]
        assert all(id(a) in extended for a in earlier)


def test_sixteen_turns_are_computed_once():
    trajectory = Trajectory(Task("t", "p"), 0, step=1)
    for turn in range(16):
        before = trajectory.actions[-1] if turn else None
        generation = Generation(tuple(range(256)), (-1.0,) * 256, "stop", "p", 0)
        trajectory.actions.append(
            Action(f"a.{turn}", "a", "p", turn, (7,) * 16, generation, "", before=before)
        )
    rows = [Row(trajectory, action, 1.0) for action in trajectory.actions]
    (sequence,) = sequences_of(rows)
    assert len(sequence.ids) == 16 * (256 + 16)
    assert sum(len(s.ids) for s in sequences_of(rows, merge=False)) == 8.5 * len(sequence.ids)
