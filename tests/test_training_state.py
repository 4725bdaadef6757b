"""The state of a training process as one value: whatever it holds comes back, in memory of its own."""

from collections import OrderedDict

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_plugins.runtime.training_state import TrainingState, packed, unpacked

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool]
TENSORS = st.builds(
    lambda dtype, shape, seed: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype),
    st.sampled_from(DTYPES),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
)
TREES = st.recursive(
    TENSORS | st.integers() | st.text(max_size=3) | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3) | st.tuples(inner, inner)
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


def through_ray(state):
    """What Ray makes of it: the arrays lie in memory that cannot be written to."""
    tensors = [numpy.frombuffer(bytes(tensor), numpy.uint8) for tensor in state.tensors]
    return TrainingState(state.skeleton, tensors)


@settings(deadline=None)
@given(TREES)
def test_any_tree_of_tensors_comes_back(tree):
    state = through_ray(packed(tree))
    assert not any(tensor.flags.writeable for tensor in state.tensors)
    found = unpacked(state)
    same(tree, found)


def test_what_comes_back_is_nobody_elses_memory():
    weights = torch.arange(6.0).reshape(2, 3)
    state = through_ray(packed({"w": weights.T, "moment": [weights[1:]]}))
    one, two = unpacked(state), unpacked(state)
    one["w"].add_(1)
    one["moment"][0].zero_()
    assert torch.equal(two["w"], weights.T) and torch.equal(two["moment"][0], weights[1:])


def test_tensors_are_neither_copied_nor_in_the_skeleton():
    weights = torch.zeros(10**6)
    state = packed({"w": weights})
    assert len(state.skeleton) < 1000 and state.nbytes == 4 * 10**6 + len(state.skeleton)
    weights[0] = 7
    assert unpacked(state)["w"][0] == 7


def test_what_a_module_knows_of_its_state_comes_back_too():
    state = torch.nn.BatchNorm1d(3).state_dict()
    found = unpacked(packed(state))
    assert isinstance(found, OrderedDict) and found._metadata == state._metadata
    del found["weight"]
    with pytest.raises(RuntimeError, match="Missing key"):
        torch.nn.BatchNorm1d(3).load_state_dict(found)
