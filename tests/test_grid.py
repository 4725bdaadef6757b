"""The grid: nothing dropped, nothing carried over, exactly K steps, for any number of rows."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.core.grid import plan_grid

SHAPES = {"rows": st.integers(0, 400), "ranks": st.integers(1, 9), "micro": st.integers(1, 9), "steps": st.integers(1, 9)}


@settings(max_examples=1000)
@given(**SHAPES)
def test_every_rank_gets_whole_windows_and_every_row_once(rows, ranks, micro, steps):
    grid = plan_grid(rows, ranks, micro, steps)
    if rows == 0:
        assert grid is None
        return
    parts = grid.per_rank(list(range(rows)), "fill")
    assert len(parts) == ranks
    assert {len(part) for part in parts} == {grid.steps * grid.accumulation * micro}
    trained = [row for part in parts for row in part if row != "fill"]
    assert trained == list(range(rows))  # once each, in order
    assert 1 <= grid.steps <= steps
    assert 0 <= grid.fill < grid.window  # so no optimiser step consists of weightless rows


@settings(max_examples=300)
@given(**SHAPES)
def test_steps_are_lowered_only_as_far_as_needed(rows, ranks, micro, steps):
    grid = plan_grid(rows, ranks, micro, steps)
    if grid is None:
        return
    for more in range(grid.steps + 1, steps + 1):
        accumulation = -(-rows // (more * micro * ranks))
        window = accumulation * micro * ranks
        assert more * window - rows >= window


@settings(max_examples=300)
@given(**SHAPES, shuffles=st.randoms())
def test_upstreams_loop_over_a_grid_takes_k_steps_and_carries_nothing(rows, ranks, micro, steps, shuffles):
    """Upstream's loop: shuffle, batches of `micro`, ragged tail dropped, a step every `accumulation` micro-batches."""
    grid = plan_grid(rows, ranks, micro, steps)
    if grid is None:
        return
    seen, taken, counts = [], [], set()
    for part in grid.per_rank(list(range(rows)), None):
        order = list(part)
        shuffles.shuffle(order)
        batches = (
            [b for b in itertools.batched(order, micro) if len(b) == micro]
            if hasattr(itertools, "batched")
            else [order[i : i + micro] for i in range(0, len(order) - len(order) % micro, micro)]
        )
        seen += [row for batch in batches for row in batch if row is not None]
        counts.add(len(batches))
        taken.append(divmod(len(batches), grid.accumulation))
    assert sorted(seen) == list(range(rows))
    assert len(counts) == 1  # else a collective would wait for ever
    assert set(taken) == {(grid.steps, 0)}


def test_a_full_batch_is_upstreams_own_accumulation():
    grid = plan_grid(rows=128, ranks=2, micro=4, steps=4)
    assert (grid.steps, grid.accumulation, grid.fill) == (4, 4, 0)


@pytest.mark.parametrize("wrong", [{"ranks": 0}, {"micro": 0}, {"steps": 0}, {"rows": -1}])
def test_impossible_shapes_are_refused(wrong):
    with pytest.raises(ValueError, match="a grid needs"):
        plan_grid(**{"rows": 5, "ranks": 1, "micro": 1, "steps": 1, **wrong})
