"""What vLLM's adapters need on CPU (0.29), in the process of an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marl_plugins.adapters.checks import WITHOUT_ADAPTERS

SMALL = 4096
"""Weights of an adapter's matrix up to which a copy for each token is no slower."""


def install() -> None:
    """Replaces what is wrong or slow; called before an engine starts."""
    import vllm.lora.ops.torch_ops as exported
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.ops.torch_ops import lora_ops

    for module in (exported, lora_ops):
        module.bgmv_shrink, module.bgmv_expand_slice = shrink, expand_slice
    matches = LoRAModelManager._match_target_modules

    def but_the_head(self: Any, name: str, module: Any) -> bool:
        """Output layer and embeddings have no adapters. In Llama's architecture vLLM makes some all
        the same, and the output layer's expects one position of each request: log-probs of a prompt
        end the engine (punica_cpu.py:349)."""
        return name.rpartition(".")[2] not in WITHOUT_ADAPTERS and matches(self, name, module)

    LoRAModelManager._match_target_modules = but_the_head


def product(inputs: Tensor, weights: Tensor, adapters: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns each token's product with the weights of its adapter, (tokens, out).

    vLLM copies the weights for each token, gigabytes for a prompt of thousands
    (lora/ops/torch_ops/lora_ops.py:72).

    Args:
        inputs: (tokens, in).
        weights: (adapters, 1, out, in) or without the 1.
        adapters: Number of each token's, (tokens); -1 is the last.
    """
    inputs, weights = inputs.to(dtype), weights.flatten(0, -3)
    if weights[0].numel() <= SMALL:
        return torch.einsum("bi, boi -> bo", inputs, weights[adapters].to(dtype))
    outputs = inputs.new_empty(len(inputs), weights.shape[1])
    for adapter in sorted({*adapters.tolist()}):
        rows = adapters == adapter
        outputs[rows] = inputs[rows] @ weights[adapter].to(dtype).T
    return outputs


def shrink(
    inputs: Tensor, weights: Tensor, output: Tensor, adapters: Tensor, scaling: float = 1.0
) -> None:
    """In place of `bgmv_shrink`."""
    products = product(inputs, weights, adapters, output.dtype)
    output[:, : products.shape[1]] = scaling * products


def expand_slice(
    inputs: Tensor,
    weights: Tensor,
    output: Tensor,
    adapters: Tensor,
    offset: int,
    size: int,
    add_inputs: bool = True,
) -> None:
    """In place of `bgmv_expand_slice`."""
    products = product(inputs, weights, adapters, output.dtype)
    part = output[:, offset : offset + size]
    part.copy_(part + products if add_inputs else products)
