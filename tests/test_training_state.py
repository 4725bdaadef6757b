"""The state of a training process as one value: whatever it holds comes back, and what goes on with
it copies it."""

from collections import OrderedDict

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.process_groups.training_state import (
    SKELETON,
    in_own_memory,
    packed,
    touch,
    unpacked,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda dtype, shape, seed: torch.randint(
        0, 2, shape, generator=torch.Generator().manual_seed(seed)
    ).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
TREES = st.recursive(
    TENSORS | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for name in one:
            same(one[name], other[name])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            same(mine, theirs)
    else:
        assert one == other


def through_ray(parts):
    """What Ray makes of them: the arrays lie in memory that cannot be written to."""
    return [{n: numpy.frombuffer(bytes(a), numpy.uint8) for n, a in p.items()} for p in parts]


def arrays(parts):
    return [array for part in parts for array in part.values()]


@settings(deadline=None)
@given(TREES, st.integers(1, 100))
def test_any_tree_of_tensors_comes_back(tree, limit):
    """In parts that are no larger than they may be, but for one that is a single tensor."""
    state = through_ray(packed(tree, limit))
    assert not any(array.flags.writeable for array in arrays(state))
    assert all(len(p) == 1 or sum(a.nbytes for a in p.values()) <= limit for p in state)
    found = unpacked(state)
    same(tree, found)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.SGD])
def test_an_optimiser_copies_what_it_is_given(kind, begun):
    """Two of them go on alike from the same state, which neither changes; where one has tensors
    already, it keeps them."""

    def made():
        torch.manual_seed(3)
        model = torch.nn.Linear(3, 2)
        return model, kind(
            model.parameters(), lr=0.1, **({"momentum": 0.9} if kind is torch.optim.SGD else {})
        )

    def stepped(model, optimizer, count):
        for number in range(count):
            optimizer.zero_grad()
            model(torch.full((4, 3), float(number))).square().sum().backward()
            optimizer.step()
        return model.weight.detach().clone()

    model, optimizer = made()
    stepped(model, optimizer, 3)
    state = through_ray(packed({"model": model.state_dict(), "optimizer": optimizer.state_dict()}))
    bytes_before = [bytes(array) for array in arrays(state)]
    expected = stepped(model, optimizer, 2)
    for _ in range(2):
        for part in state:
            touch(part)
        found = unpacked(state)
        other, its_optimizer = made()
        if begun:
            stepped(other, its_optimizer, 1)
        tensors = {
            id(v): v
            for values in its_optimizer.state.values()
            for v in values.values()
            if torch.is_tensor(v)
        }
        other.load_state_dict(found["model"])
        its_optimizer.register_load_state_dict_pre_hook(in_own_memory)
        its_optimizer.load_state_dict(found["optimizer"])
        assert torch.equal(stepped(other, its_optimizer, 2), expected)
        if begun:
            kept = [
                id(v)
                for values in its_optimizer.state.values()
                for v in values.values()
                if torch.is_tensor(v)
            ]
            assert len(kept) == len(tensors) and set(kept) == set(tensors)
    assert [bytes(array) for array in arrays(state)] == bytes_before


def test_tensors_are_neither_copied_nor_in_the_skeleton():
    weights = torch.zeros(10**6)
    state = [*packed({"w": weights, "tied": weights})]
    assert sum(a.nbytes for a in arrays(state)) < 4 * 10**6 + 1000 > state[0][SKELETON].nbytes
    weights[0] = 7
    assert unpacked(state)["w"][0] == 7


def test_what_a_module_knows_of_its_state_comes_back_too():
    state = torch.nn.BatchNorm1d(3).state_dict()
    found = unpacked([*packed(state)])
    assert isinstance(found, OrderedDict) and found._metadata == state._metadata
    del found["weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        torch.nn.BatchNorm1d(3).load_state_dict(found)
