"""How a model sees trees of sequences (core/sequences.py).

    mask         1  1  1  1 -3  1  1 -6  1  0      of the tree in `TokenTree`, and padding
    distinct     0  1  2  3  2  4  5  1  6         a copy is what it copies, in the model's layers
    follows     -1  0  1  2  2  4  1
    ends         7  7  6  4  6  6  7               the place behind all that follows a token
    positions    0  1  2  3  3  4  2

A token is seen by itself and by all that stand behind it and before its end. Upstream counts
positions from the mask and hands both on; a hook of the model puts the distinct tokens of a tree,
their positions and view in their place, and another gives the states back as the tree has its
tokens, to the head. A batch of sequences by themselves has no negative number in its mask and is
left as it is.

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

from marl_plugins.core.sequences import distinct

STRETCH = 128
"""Tokens of a tree whose keys are looked up together."""
Stretches = tuple[Tensor, list[Tensor]]
"""The places that a tree's stretches see, one stretch after the other, and for each which of its
tokens sees which of them, (1, 1, tokens, seen)."""


def see_trees(model: nn.Module) -> None:
    """Has a model, in whatever it is wrapped, see trees where its attention mask says so."""
    core = next(m for m in model.modules() if getattr(m, "base_model", None) is m)
    core.register_forward_pre_hook(_with_view, with_kwargs=True)
    core.register_forward_hook(_with_copies, with_kwargs=True)
    sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
    if not isinstance(sdpa, partial):
        ALL_ATTENTION_FUNCTIONS.register("sdpa", partial(_attention, sdpa))


def _with_view(module: Any, args: Any, named: dict[str, Any]) -> Any:
    mask = named.get("attention_mask")
    if mask is None or mask.dim() != 2 or not (mask < 0).any():
        return None
    if not module._supports_attention_backend:  # it sees one sequence: its numbers will differ
        return args, {**named, "attention_mask": (mask != 0).to(mask.dtype)}
    given = args[0] if args else named["input_ids"]
    found = compact(given.cpu(), mask.cpu())
    copies, ids, ends, positions = (each.to(mask.device) for each in found)
    attention = module.config._attn_implementation
    named = {**named, "input_ids": ids, "position_ids": positions, "copies": copies}
    if attention == "sdpa":
        named["trees"] = [stretches(each, mask.device) for each in ends.cpu()]
    return (), {**named, "attention_mask": view_of(ends, attention)}


def _with_copies(module: Any, args: Any, named: dict[str, Any], output: Any) -> Any:
    if (copies := named.get("copies")) is None:
        return None
    states = output.last_hidden_state
    trees = torch.arange(len(states), device=states.device)[:, None]
    output.last_hidden_state = states[trees, copies]
    return output


def compact(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Returns the places of the tokens of trees among their distinct ones, (trees, T), and ids,
    ends and positions of these, (trees, distinct) each."""
    real = (mask != 0).sum(-1).tolist()
    trees = [
        distinct(mine[:count].tolist(), steps[:count].tolist())
        for mine, steps, count in zip(ids, mask, real, strict=True)
    ]
    most = max(len(follows) for _, follows in trees)
    copies = torch.zeros_like(ids)
    distinct_ids, positions = torch.zeros(2, len(ids), most, dtype=ids.dtype)
    ends = torch.arange(1, most + 1).repeat(len(ids), 1)
    for tree, (places, follows) in enumerate(trees):
        copies[tree, : len(places)] = torch.tensor(places)
        distinct_ids[tree, places] = ids[tree, : len(places)]
        last, depths = walked(follows)
        ends[tree, : len(follows)] = torch.tensor(last)
        positions[tree, : len(follows)] = torch.tensor(depths)
    return copies, distinct_ids, ends, positions


def walked(follows: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns ends and positions of a tree's distinct tokens, of which each follows one before it,
    or none (-1)."""
    ends, positions = list(range(1, len(follows) + 1)), list[int]()
    for before in follows:
        positions.append(positions[before] + 1 if before >= 0 else 0)
    for place in range(len(follows) - 1, -1, -1):
        if (before := follows[place]) >= 0:
            ends[before] = max(ends[before], ends[place])
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
