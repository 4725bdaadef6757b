"""Replaces, in plain torch, what upstream takes from `flash_attn.bert_padding`: rows without their
padding one after the other, and back.

flash-attn cannot be installed without CUDA. Attention `eager` and `sdpa` keep packed rows apart by
their position ids.
"""

from __future__ import annotations

import torch
from torch import Tensor


def unpad_input(hidden: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Returns the positions of (batch, length, ...) where the mask (batch, length) is 1.

    Returns:
        (total, ...), the positions' indices in batch x length (total,), the rows' limits (batch +
        1,), the longest row, and the rows' lengths (batch,).
    """
    lengths = mask.sum(-1, dtype=torch.int32)
    indices = mask.flatten().nonzero().flatten()
    limits = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    return hidden.flatten(0, 1)[indices], indices, limits, int(lengths.max()), lengths


def pad_input(hidden: Tensor, indices: Tensor, batch: int, length: int) -> Tensor:
    """Brings (total, ...) back to (batch, length, ...), 0 elsewhere."""
    whole = hidden.new_zeros(batch * length, *hidden.shape[1:])
    return whole.index_copy(0, indices, hidden).reshape(batch, length, *hidden.shape[1:])


def index_first_axis(values: Tensor, indices: Tensor) -> Tensor:
    """Returns the chosen entries of the first axis."""
    return values[indices]


def rearrange(values: Tensor, pattern: str) -> Tensor:
    """Does what einops' function does for the one pattern that upstream uses."""
    if pattern != "b s ... -> (b s) ...":
        raise NotImplementedError(f"rearrange {pattern!r}; known is 'b s ... -> (b s) ...'")
    return values.flatten(0, 1)
