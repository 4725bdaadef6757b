"""Everything that a training process knows and another one in its place has to know, as one value.

What DeepSpeed says is its state is what it would write into a checkpoint: weights, the optimiser's
and the scheduler's state, its counters. Here its checkpoint engine keeps that in memory. To it come
the random generators and what upstream's strategy counts. Every process keeps all weights, because
none may wait for rank 0's.

It is given in parts, as weights are to engines (engine/processes/pieces.py): a skeleton, which is a
pickle, and the bytes of each tensor. Ray copies every byte once, from the process into its store,
and the next process once, into the tensors that it has anyway; what is on a device is copied to the
host a part at a time. The parts belong to whoever asked for them and outlive the process.
"""

from __future__ import annotations

import io
import mmap
import pickle
import random
import tempfile
import warnings
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy
import torch
from deepspeed.accelerator import get_accelerator
from deepspeed.runtime.checkpoint_engine.checkpoint_engine import CheckpointEngine

# inside: works in the training processes
from marl_plugins.engine.processes.pieces import PIECE_BYTES, portions

TAG = "state"
SKELETON = "skeleton"

Part = Mapping[str, Any]
"""Arrays of bytes by the names that the skeleton has for them, and in the first part the skeleton;
read-only once they have been through Ray's store."""


class MemoryCheckpoints(CheckpointEngine):  # type: ignore[misc]
    """DeepSpeed's checkpoint engine that keeps what it is given, by the name of the file that it
    would be in."""

    def __init__(self, files: dict[str, Any]):
        super().__init__()
        self.files = files

    def create(self, info: Any) -> None: ...

    def commit(self, info: Any) -> bool:
        return True

    def save(self, state_dict: Any, path: str) -> None:
        self.files[Path(path).name] = state_dict

    def load(self, path: str, map_location: Any = None) -> Any:
        return self.files[Path(path).name]


@contextmanager
def _kept_in_memory(engine: Any, files: dict[str, Any]) -> Iterator[str]:
    """Lets DeepSpeed save to and load from memory; yields a folder with empty files, among which it
    looks for names."""
    kept: dict[str, Any] = {
        "checkpoint_engine": MemoryCheckpoints(files),
        "save_non_zero_checkpoint": True,
    }
    with patch.multiple(engine, **kept), tempfile.TemporaryDirectory() as folder:
        Path(folder, TAG).mkdir()
        for name in files:
            Path(folder, TAG, name).touch()
        yield folder


def get_state(engine: Any, strategy: Any, extensions: Sequence[Any] = ()) -> Iterator[Part]:
    """Yields the state of a process; all ranks are asked at the same time, between two of the
    things that they are asked for.

    Args:
        engine: DeepSpeed's.
        strategy: Upstream's.
        extensions: The states of the process's extensions.
    """
    files: dict[str, Any] = {}
    with _kept_in_memory(engine, files) as folder:
        engine.save_checkpoint(folder, TAG, save_latest=False)
    yield from packed(
        {
            "files": files,
            "micro_steps": engine.micro_steps,
            "batch": engine.train_batch_size(),
            "grad_norm": engine.get_global_grad_norm(),
            "accumulated": strategy.accumulated_gradient,
            "time_steps": dict(strategy.time_steps),
            "random": (random.getstate(), numpy.random.get_state(), torch.get_rng_state()),
            "random_on_device": get_accelerator().get_rng_state(),
            "extensions": list(extensions),
        }
    )


def set_state(engine: Any, strategy: Any, state: Sequence[Part]) -> list[Any]:
    """Makes a process that has just loaded its model the one whose state this is, and returns the
    states of its extensions."""
    values = unpacked(state)
    hook = engine.basic_optimizer.register_load_state_dict_pre_hook(in_own_memory)
    try:
        with _kept_in_memory(engine, values["files"]) as folder:
            loaded, _ = engine.load_checkpoint(folder, TAG)
    finally:
        hook.remove()
    assert loaded is not None, "DeepSpeed did not find what it had saved"
    engine.set_train_batch_size(values["batch"])
    engine.micro_steps, engine._global_grad_norm = values["micro_steps"], values["grad_norm"]
    strategy.accumulated_gradient = values["accumulated"]
    strategy.time_steps.update(values["time_steps"])
    of_python, of_numpy, of_torch = values["random"]
    random.setstate(of_python)
    numpy.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
    get_accelerator().set_rng_state(values["random_on_device"])
    extensions: list[Any] = values["extensions"]
    return extensions


def in_own_memory(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """Returns the state that an optimiser of torch's is about to load, copied to where it has one
    already.

    Models copy what they load; optimisers keep it (torch/optim/optimizer.py, `load_state_dict`),
    which here cannot be written to.
    """
    parameters = [one for group in optimizer.param_groups for one in group["params"]]

    def copied(value: Any, mine: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        fits = isinstance(mine, torch.Tensor) and (mine.shape, mine.dtype) == (
            value.shape,
            value.dtype,
        )
        return mine.copy_(value) if fits else value.clone()

    own = {
        place: {
            name: copied(value, optimizer.state.get(parameters[place], {}).get(name))
            for name, value in values.items()
        }
        for place, values in state["state"].items()
    }
    return {**state, "state": own}


def touch(part: Part) -> None:
    """Reads a byte of each page, so that the memory is mapped: that takes a new process as long as
    copying it."""
    for elements in part.values():
        elements[:: mmap.PAGESIZE].max(initial=0)


class _Pickler(pickle.Pickler):
    """Leaves out tensors, and names each."""

    def __init__(self, file: Any):
        super().__init__(file, protocol=5)
        self.names: dict[torch.Tensor, str] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        name = self.names.setdefault(value, str(len(self.names)))
        return name, value.dtype, tuple(value.shape)


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: Any, arrays: Mapping[str, Any]):
        super().__init__(file)
        self.arrays = arrays

    def persistent_load(self, reference: Any) -> torch.Tensor:
        name, dtype, shape = reference
        elements = self.arrays[name]
        if not elements.size:  # torch views no empty array as another type
            return torch.empty(shape, dtype=dtype)
        return torch.from_numpy(elements).view(dtype).reshape(shape)


def packed(tree: Any, limit: int = PIECE_BYTES) -> Iterator[Part]:
    """Yields any value that can be pickled, in parts of at most `limit` bytes, or of one tensor;
    tensors in the host's memory are not copied."""
    file = io.BytesIO()
    pickler = _Pickler(file)
    pickler.dump(tree)
    yield {SKELETON: numpy.frombuffer(file.getvalue(), numpy.uint8)}
    tensors = {name: tensor for tensor, name in pickler.names.items()}
    for names in portions({name: tensor.nbytes for name, tensor in tensors.items()}, limit):
        yield {name: _elements(tensors[name]) for name in names}


def _elements(tensor: torch.Tensor) -> Any:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()


def unpacked(parts: Sequence[Part]) -> Any:
    """Returns the value that was packed. Its tensors are not copied either; where the bytes cannot
    be written to, nor can they."""
    arrays = ChainMap(*map(dict, parts))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return _Unpickler(io.BytesIO(arrays[SKELETON].tobytes()), arrays).load()
