"""Weights in pieces: the same bits in other portions, in memory that has no name."""

import os

import pytest
import safetensors.torch

torch = pytest.importorskip("torch")
pieces = pytest.importorskip("marl_plugins.engine.processes.pieces")

STATE = {
    "a": torch.randn(3, 5).to(torch.bfloat16),
    "b": torch.randn(7),
    "c": torch.ones(()),
    "d": torch.randn(4, 4).t(),
    "e": torch.randn(1).to(torch.float16),
}


@pytest.mark.parametrize("limit", [1, 40, 10**9])
def test_pieces_are_the_whole_bit_for_bit(limit):
    sizes = {name: value.numel() * value.element_size() for name, value in STATE.items()}
    portions = list(pieces.portions(sizes, limit))
    assert [name for names in portions for name in names] == list(STATE)
    assert all(len(names) == 1 or sum(map(sizes.get, names)) <= limit for names in portions)
    made = [pieces.piece_of({name: STATE[name] for name in names}) for names in portions]
    found = safetensors.torch.load(pieces.joined(made))
    assert found.keys() == STATE.keys()
    assert all(torch.equal(found[name], value) for name, value in STATE.items())


def test_a_piece_that_is_mapped_is_gone_with_whoever_maps_it():
    with pieces.mapped(pieces.piece_of(STATE)) as path:
        found = safetensors.torch.load_file(path)
        assert os.path.exists(path)
    assert not os.path.exists(path)
    assert all(torch.equal(found[name], value) for name, value in STATE.items())
