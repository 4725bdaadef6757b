"""How a model sees trees of sequences (core/sequences.py).

    mask         1  1  1  1 -3  1  1 -6  1  0      of the tree in `TokenTree`, and padding
    ends         9  9  4  4  7  7  7  9  9  10     the place behind all that follows a token
    positions    0  1  2  3  2  3  4  2  3

A token is seen by itself and by all that stand behind it and before its end. Upstream counts
positions from the mask and hands both on; a hook of the model puts the tree's in their place. A
batch of sequences by themselves has no negative number in its mask and is left as it is.

What a stretch of a tree sees is that stretch and the path to its first token, few tokens of a large
tree. `sdpa` is therefore asked stretch by stretch, each with the keys that it sees:
`flex_attention` does so itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

STRETCH = 128
"""Tokens of a tree whose keys are looked up together."""
Stretches = tuple[Tensor, list[Tensor]]
"""The places that a tree's stretches see, one stretch after the other, and for each which of its
tokens sees which of them, (1, 1, tokens, seen)."""


def see_trees(model: nn.Module) -> None:
    """Has a model, in whatever it is wrapped, see trees where its attention mask says so."""
    core = next(m for m in model.modules() if getattr(m, "base_model", None) is m)
    core.register_forward_pre_hook(_with_view, with_kwargs=True)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if not isinstance(sdpa, partial):
        ALL_ATTENTION_FUNCTIONS.register("sdpa", partial(_attention, sdpa))


def _with_view(module: Any, args: Any, named: dict[str, Any]) -> Any:
    mask = named.get("attention_mask")
    if mask is None or mask.dim() != 2 or not (mask < 0).any():
        return None
    ends, positions = walked(mask.cpu())
    named = {**named, "position_ids": positions.to(mask.device)}
    if not module._supports_attention_backend:  # it sees one sequence: its numbers will differ
        return args, {**named, "attention_mask": (mask != 0).to(mask.dtype)}
    attention = module.config._attn_implementation
    if attention == "sdpa":
        named["trees"] = [stretches(each, mask.device) for each in ends]
    return args, {**named, "attention_mask": view_of(ends.to(mask.device), attention)}


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


def view_of(ends: Tensor, attention: str) -> Any:
    """Returns which token sees which as a block mask; for `sdpa`, which is told by stretches, what
    keeps a model from making a mask of its own."""
    count, length = ends.shape
    if attention == "sdpa":
        return torch.ones(count, 1, 1, length, dtype=torch.bool, device=ends.device)
    from torch.nn.attention.flex_attention import create_block_mask

    def sees(tree: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[tree, key])

    compiled, device = ends.is_cuda, str(ends.device)  # compiled, it makes no T x T on the way
    return create_block_mask(sees, count, None, length, length, device, _compile=compiled)


def stretches(ends: Tensor, device: torch.device) -> Stretches:
    """Returns the stretches of a tree from the ends of its tokens, (T,)."""
    places, seen = torch.arange(len(ends)), []
    keys = []
    for mine in torch.split(places, STRETCH):
        keys.append((ends[: mine[-1] + 1] > mine[0]).nonzero()[:, 0])
        seen.append((keys[-1] <= mine[:, None]) & (mine[:, None] < ends[keys[-1]]))
    return torch.cat(keys).to(device), [each[None, None].to(device) for each in seen]


def _attention(
    sdpa: Callable[..., tuple[Tensor, None]],
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    trees: Sequence[Stretches] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """`sdpa` of transformers, of trees stretch by stretch; what it needs for the gradient is
    gathered again then, because the keys of all stretches are many times those of the tree."""
    if trees is None:
        return sdpa(module, query, key, value, attention_mask, **kwargs)

    def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        of_trees = []
        for number, (keys, seen) in enumerate(trees):
            counts = [each.shape[-1] for each in seen]
            parts = zip(
                torch.split(query[number : number + 1], STRETCH, 2),
                torch.split(key[number : number + 1].index_select(2, keys), counts, 2),
                torch.split(value[number : number + 1].index_select(2, keys), counts, 2),
                seen,
                strict=True,
            )
            of_trees.append(torch.cat([sdpa(module, *part, **kwargs)[0] for part in parts], 1))
        return torch.cat(of_trees)

    made: Tensor = checkpoint(
        attended, query, key, value, use_reentrant=False, preserve_rng_state=False
    )
    return made, None
