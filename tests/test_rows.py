"""Rows that are kept or left out, and the ledger's law."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import rows_of
from marl_plugins.filter_agents_data import keep_whole_batches


def three_rows():
    trajectory = make_trajectory({"a": [], "b": ["a"], "c": ["b"]})
    for action in trajectory.actions:
        action.returns = 1.0
    return trajectory, rows_of([trajectory], frozenset({"p"}))


def test_the_ledger_adds_up():
    trajectory, rows = three_rows()
    rows[1].action.left_out = "too long"
    kept = [rows[0], rows[2]]
    ledger = Ledger.of(1, [trajectory], kept)
    assert ledger.record()["roles"]["b"] == {
        "generated": 1,
        "trained": 0,
        "left_out": {"too long": 1},
    }
    assert ledger.generated.total() == 3 == ledger.trained.total() + 1


def test_a_plugin_that_drops_rows_silently_is_found_out():
    trajectory, rows = three_rows()
    with pytest.raises(RunPaused, match="neither trained"):
        Ledger.of(1, [trajectory], rows[:2])


def test_a_row_cannot_be_both_trained_on_and_left_out():
    trajectory, rows = three_rows()
    rows[0].action.left_out = "too long"
    with pytest.raises(RunPaused, match="trained on and"):
        Ledger.of(1, [trajectory], rows)


def many_rows(count):
    rows = []
    for n in range(count):
        trajectory = make_trajectory({"a": []}, task=f"t{n:03}")
        trajectory.actions[0].returns = 1.0
        rows += rows_of([trajectory], frozenset({"p"}))
    return rows


@given(
    st.integers(0, 40),
    st.integers(1, 9),
    st.sampled_from(["random", "truncate"]),
    st.integers(0, 5),
)
def test_whole_batches_are_kept_in_order_and_never_nothing(count, multiple, mode, seed):
    rows = many_rows(count)
    kept = keep_whole_batches(rows, multiple, mode, seed)
    if count < multiple:
        assert kept == rows
    else:
        assert len(kept) == count - count % multiple
    assert [r.order for r in kept] == sorted(r.order for r in kept)
    assert keep_whole_batches(rows, multiple, mode, seed) == kept


def test_random_dropping_favours_no_task():
    rows = many_rows(7)
    dropped = {
        r.name
        for seed in range(60)
        for r in set_minus(rows, keep_whole_batches(rows, 3, "random", seed))
    }
    assert len(dropped) == 7
    assert {
        r.name
        for seed in range(60)
        for r in set_minus(rows, keep_whole_batches(rows, 3, "truncate", seed))
    } == {rows[6].name}


def set_minus(rows, kept):
    return [r for r in rows if not any(r is k for k in kept)]
