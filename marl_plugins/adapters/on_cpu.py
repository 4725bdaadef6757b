"""What vLLM's adapters need on CPU (0.29), in the process of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from marl_plugins.adapters.checks import WITHOUT_ADAPTERS


def install() -> None:
    """Replaces what is wrong or slow; called before an engine starts."""
    from vllm.lora.model_manager import LoRAModelManager
    from vllm.lora.punica_wrapper.punica_cpu import PunicaWrapperCPU

    update = PunicaWrapperCPU.update_metadata

    def with_rows(self: Any, *args: Any, **kwargs: Any) -> None:
        update(self, *args, **kwargs)
        self.rows = None

    PunicaWrapperCPU.update_metadata, PunicaWrapperCPU.add_lora_linear = with_rows, add_products
    matches = LoRAModelManager._match_target_modules

    def but_the_head(self: Any, name: str, module: Any) -> bool:
        """Output layer and embeddings have no adapters. In Llama's architecture vLLM makes some all
        the same, and the output layer's expects one position of each request: log-probs of a prompt
        end the engine (punica_cpu.py:349)."""
        return name.rpartition(".")[2] not in WITHOUT_ADAPTERS and matches(self, name, module)

    LoRAModelManager._match_target_modules = but_the_head


def rows_of(wrapper: Any, count: int) -> list[tuple[int, Tensor]]:
    """Returns the adapters of a batch of tokens with the places of each one's; found once for all
    layers."""
    known: tuple[int, list[tuple[int, Tensor]]] | None = getattr(wrapper, "rows", None)
    if known is None or known[0] != count:
        adapters = wrapper._token_lora_indices[:count]
        present = [adapter for adapter in adapters.unique().tolist() if adapter >= 0]
        known = count, [(adapter, (adapters == adapter).nonzero()[:, 0]) for adapter in present]
        wrapper.rows = known
    return known[1]


def add_products(
    self: Any,
    y: Tensor,
    x: Tensor,
    lora_a_stacked: Sequence[Tensor],
    lora_b_stacked: Sequence[Tensor],
    scale: float,
    output_slices: Sequence[int],
    **kwargs: Any,
) -> None:
    """In place of `add_lora_linear`, which takes the weights' copies for each token, gigabytes for
    a prompt of thousands (lora/ops/torch_ops/lora_ops.py:72), or for a layer's every slice its
    own.

    Args:
        y: What is added to, (tokens, the slices together).
        x: (tokens, in).
        lora_a_stacked: (adapters, 1, rank, in) of each slice.
        lora_b_stacked: (adapters, 1, slice, rank) of each slice.
    """
    y, x = y.view(-1, y.shape[-1]), x.view(-1, x.shape[-1])
    for adapter, rows in rows_of(self, len(x)):
        alone = len(rows) == len(x)
        down = torch.cat([weights[adapter, 0] for weights in lora_a_stacked]).float()
        between = scale * ((x if alone else x[rows]).float() @ down.T)
        parts = torch.split(between, [weights.shape[2] for weights in lora_a_stacked], 1)
        outputs = torch.split(y, list(output_slices), 1)
        for part, up, output in zip(parts, lora_b_stacked, outputs, strict=True):
            product = part @ up[adapter, 0].float().T
            if alone:
                output += product
            else:
                output[rows] = (output[rows] + product).to(output.dtype)
