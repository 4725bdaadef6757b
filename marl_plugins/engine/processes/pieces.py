"""A policy's weights in pieces: each is a safetensors file of a bounded size, as the buffers of its
head and of its tensors.

    training process    makes one piece after the other, with ZeRO 3 gathered for that alone; Ray's
                        store has each of them once, whoever takes it and however often
    engine              copies a piece into memory that its workers map as well, and has them load
                        it from there

The processes of engines import this module, and must not import DeepSpeed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import ChainMap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import safetensors.torch
import torch

PIECE_BYTES = 512 * 10**6
"""Largest piece; a larger parameter is a piece of its own."""
DTYPES = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
"""Their names in safetensors."""

Piece = Sequence[Any]
"""Buffers that are a safetensors file, one after the other."""


def portions(sizes: Mapping[str, int], limit: int) -> Iterator[list[str]]:
    """Yields names in their order, whose sizes are together at most `limit`."""
    names: list[str] = []
    total = 0
    for name, size in sizes.items():
        if names and total + size > limit:
            yield names
            names, total = [], 0
        names.append(name)
        total += size
    yield names


def piece_of(tensors: Mapping[str, torch.Tensor]) -> Piece:
    """Returns tensors as a piece; those in the host's memory are not copied."""
    entries: dict[str, Any] = {}
    buffers: list[Any] = []
    end = 0
    # The largest elements first: each tensor is then aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].element_size()):
        begin = end
        buffers.append(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
        end += buffers[-1].nbytes
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": [*tensor.shape],
            "data_offsets": [begin, end],
        }
    head = json.dumps(entries).encode()
    head += b" " * (-len(head) % 8)
    return [len(head).to_bytes(8, "little") + head, *buffers]


@contextlib.contextmanager
def mapped(piece: Piece) -> Iterator[str]:
    """Copies a piece into memory without a name, and yields the path by which other processes of
    this host open it meanwhile.

    The memory is gone when nobody maps it and this process has left or ended, however it ended.
    """
    with open(os.memfd_create("weights"), "wb") as file:
        for buffer in piece:
            file.write(buffer)
        file.flush()
        yield f"/proc/{os.getpid()}/fd/{file.fileno()}"


def joined(pieces: Sequence[Piece]) -> bytes:
    """Returns pieces as one safetensors file."""
    if len(pieces) == 1:
        return b"".join(pieces[0])
    files = (safetensors.torch.load(b"".join(piece)) for piece in pieces)
    whole: bytes = safetensors.torch.save(dict(ChainMap(*files)))
    return whole
