"""A stand-in for ring_flash_attn: every rank gathers all keys and values, and attends from its own
slice of the packed tokens.

What it cannot show is ring_flash_attn's kernels. What it shows is that the ranks of a ring hold
slices of the same sequences, and that losses and gradients of these slices make those of the whole.
"""

import math
import sys
import types

import torch
from torch import distributed


class Gathered(torch.autograd.Function):
    """Slices of all ranks along a dimension. A slice's gradient is summed over the ranks, as with
    flash_attn's `all_gather`."""

    @staticmethod
    def forward(ctx, mine, group, dim):
        ctx.group, ctx.dim = group, dim
        slices = [
            torch.empty_like(mine, memory_format=torch.contiguous_format)
            for _ in range(group.size())
        ]
        distributed.all_gather(slices, mine.contiguous(), group=group)
        return torch.cat(slices, dim)

    @staticmethod
    def backward(ctx, gradient):
        whole = gradient.contiguous()
        distributed.all_reduce(whole, group=ctx.group)
        size = whole.shape[ctx.dim] // ctx.group.size()
        return whole.narrow(ctx.dim, distributed.get_rank(ctx.group) * size, size), None, None


def install(upstream=None):
    """Be ring_flash_attn, and flash_attn's `all_gather`, in this process. Attention `sdpa` is
    replaced once a ring is set up.

    Args:
        upstream: Its module `ring_attn_utils`, where that is only being imported.
    """
    if upstream is None:
        import openrlhf.models.ring_attn_utils as upstream
    import transformers.utils
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    limits = []

    def attention(module, query, key, value, mask, scaling=None, **options):
        group = upstream.get_ring_attn_group()
        keys, values = (Gathered.apply(tensor, group, 2) for tensor in (key, value))
        repeats = query.shape[1] // keys.shape[1]
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
        theirs = torch.arange(keys.shape[2])
        mine = distributed.get_rank(group) * query.shape[2] + torch.arange(query.shape[2])
        row = torch.bucketize(theirs, limits[-1][1:], right=True)
        seen = (row[mine][:, None] == row[None]) & (mine[:, None] >= theirs[None])
        scores = query @ keys.transpose(2, 3) * (scaling or 1 / math.sqrt(query.shape[3]))
        weights = scores.masked_fill(~seen, -math.inf).softmax(-1)
        return (weights @ values).transpose(1, 2).contiguous(), None

    ring = types.ModuleType("ring_flash_attn")
    ring.substitute_hf_flash_attn = lambda group, stride: ALL_ATTENTION_FUNCTIONS.register(
        "sdpa", attention
    )
    ring.update_ring_flash_attn_params = lambda cu_seqlens, group: limits.append(cu_seqlens.clone())
    sys.modules["ring_flash_attn"] = ring
    transformers.utils.is_flash_attn_greater_or_equal_2_10 = lambda: True
    upstream.all_gather = lambda tensor, group: Gathered.apply(tensor, group, 0)
