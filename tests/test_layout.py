"""The layout: nothing dropped, nothing carried over, exactly K steps, no micro-batch over its
limit, for any sequences."""

import random
from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.engine.runtime.layout import Limit, plan_layout

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=120)
LIMITS = st.one_of(
    st.builds(Limit, st.integers(1, 9)),
    st.builds(Limit, tokens=st.integers(60, 300), packed=st.booleans()),
)


def shuffling(seed):
    return lambda epoch, count: random.Random(f"{seed}/{epoch}").sample(range(count), count)


@settings(max_examples=200, deadline=None)
@given(
    lengths=LENGTHS,
    ranks=st.integers(1, 7),
    steps=st.integers(1, 9),
    limit=LIMITS,
    epochs=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_sequence_is_computed_once_an_epoch_in_whole_windows(
    lengths, ranks, steps, limit, epochs, seed
):
    layout = plan_layout(lengths, ranks, steps, limit, shuffling(seed), epochs)
    assert layout.steps == min(steps, len(lengths))
    assert sorted(i for share in layout.ranks for i in share) == list(range(len(lengths)))
    assert len(layout.ranks) == ranks and len(layout.epochs) == epochs
    assert max(map(len, layout.ranks)) - min(map(len, layout.ranks)) <= 1
    for epoch in layout.epochs:
        for share, batches in zip(layout.ranks, epoch, strict=True):
            assert (
                len(batches) == layout.steps * layout.accumulation
            )  # else a collective would wait for ever
            assert sorted(i for batch in batches for i in batch) == list(range(len(share)))
            for batch in filter(None, batches):
                mine = [lengths[share[i]] for i in batch]
                if limit.tokens is None:
                    assert len(batch) <= limit.sequences
                else:
                    assert (sum(mine) if limit.packed else max(mine) * len(mine)) <= limit.tokens
        windows = [
            sum(
                len(b)
                for batches in epoch
                for b in batches[s * layout.accumulation : (s + 1) * layout.accumulation]
            )
            for s in range(layout.steps)
        ]
        assert min(windows) >= 1  # no optimiser step consists of weightless sequences


@settings(max_examples=100)
@given(
    count=st.integers(1, 200),
    ranks=st.integers(1, 5),
    micro=st.integers(1, 9),
    steps=st.integers(1, 9),
    seed=st.integers(0, 99),
)
def test_no_more_micro_batches_than_a_full_window_needs(count, ranks, micro, steps, seed):
    draw = random.Random(seed)
    layout = plan_layout(
        [draw.randint(1, 99) for _ in range(count)], ranks, steps, Limit(micro), shuffling(seed)
    )
    largest = ceil(ceil(count / ranks) / layout.steps)
    assert layout.accumulation == ceil(largest / micro)


def test_a_full_batch_is_upstreams_own_accumulation():
    layout = plan_layout([7] * 128, ranks=2, steps=4, limit=Limit(4))
    assert (layout.steps, layout.accumulation, layout.fill) == (4, 4, 0)


def test_the_order_decides_which_step_a_sequence_belongs_to():
    layout = plan_layout(
        [5, 9, 5, 9],
        1,
        2,
        Limit(1),
        lambda epoch, count: [3, 1, 0, 2] if epoch else [2, 0, 3, 1],
        2,
    )
    assert layout.epochs == ((((0,), (2,), (1,), (3,)),), (((1,), (3,), (0,), (2,)),))


def test_neighbours_in_length_share_a_micro_batch():
    draw = random.Random(0)
    lengths = [round(draw.lognormvariate(4, 1)) + 1 for _ in range(512)]

    def padded(limit):
        layout = plan_layout(lengths, 1, 1, limit)
        return sum(max(lengths[i] for i in b) * len(b) for b in layout.epochs[0][0]) / sum(lengths)

    given = sum(max(lengths[n : n + 8]) * 8 for n in range(0, 512, 8)) / sum(lengths)
    assert padded(Limit(8)) < 1.1 < 2 < given


def test_a_packed_micro_batch_is_nearly_full():
    draw = random.Random(0)
    lengths = [min(2000, round(draw.lognormvariate(5, 1)) + 1) for _ in range(400)]
    layout = plan_layout(lengths, 2, 1, Limit(tokens=4096, packed=True))
    used = [
        sum(lengths[share[i]] for i in b)
        for share, rank in zip(layout.ranks, layout.epochs[0], strict=True)
        for b in rank
    ]
    assert sum(used) / (len(used) * 4096) > 0.9


def test_a_sequence_beyond_the_limit_is_named():
    with pytest.raises(ValueError, match="61 tokens is beyond 60") as refused:
        plan_layout([5, 61], 1, 1, Limit(tokens=60))
    assert refused.value.args[1] == 1
