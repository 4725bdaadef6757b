"""How a model sees trees of sequences (core/sequences.py).

    mask         1  1  1  1 -3  1  1 -7  1  0      of the tree in `TokenTree`, and padding
    ends         9  7  4  4  7  7  7  9  9  10     the place behind all that follows a token
    positions    0  1  2  3  2  3  4  1  2

A token is seen by itself and by all that stand behind it and before its end. Upstream counts
positions from the mask and hands both on; a hook of the model puts the tree's in their place. A
batch of sequences by themselves has no negative number in its mask and is left as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def see_trees(model: nn.Module) -> None:
    """Has a model, in whatever it is wrapped, see trees where its attention mask says so."""
    core = next(m for m in model.modules() if getattr(m, "base_model", None) is m)
    core.register_forward_pre_hook(_with_view, with_kwargs=True)


def _with_view(module: Any, args: Any, named: dict[str, Any]) -> Any:
    mask = named.get("attention_mask")
    if mask is None or mask.dim() != 2 or not (mask < 0).any():
        return None
    ends, positions = (each.to(mask.device) for each in walked(mask.cpu()))
    view = view_of(ends, module.config._attn_implementation, module.dtype)
    return args, {**named, "attention_mask": view, "position_ids": positions}


def walked(mask: Tensor) -> tuple[Tensor, Tensor]:
    """Returns ends and positions of the tokens of trees, (trees, T) both."""
    places = torch.arange(mask.shape[1])
    real = (mask != 0).sum(-1, keepdim=True)
    ends = torch.where(mask != 0, real, places + 1)
    positions = places.repeat(len(mask), 1)
    for tree, place in (mask < 0).nonzero().tolist():
        follows = place + int(mask[tree, place])
        ends[tree, follows + 1 : place].clamp_(max=place)
        position = int(positions[tree, follows]) + 1 if follows >= 0 else 0
        positions[tree, place:] -= positions[tree, place] - position
    return ends, positions


def view_of(ends: Tensor, attention: str, dtype: torch.dtype) -> Any:
    """Returns which token sees which, in the form that an attention takes: (trees, 1, T, T), or a
    block mask."""
    count, length = ends.shape
    if attention == "flex_attention":
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(tree: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key <= query) & (query < ends[tree, key])

        return create_block_mask(sees, count, None, length, length, device=str(ends.device))
    places = torch.arange(length, device=ends.device)
    seen = (places <= places[:, None]) & (places[:, None] < ends[:, None, None, :])
    if attention == "eager":
        return torch.where(seen, 0.0, torch.finfo(dtype).min).to(dtype)
    return seen
