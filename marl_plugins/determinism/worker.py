"""What a process computes with, as it sees it itself: in training processes and in vLLM's
workers."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from marl_plugins import Extension

# inside: works in the training processes
from marl_plugins.engine.processes.nodes import PACKAGES, versions_here

ENVIRONMENT = (
    "VLLM_BATCH_INVARIANT",
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "FLASH_ATTENTION_DETERMINISTIC",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "OMP_NUM_THREADS",
)
DRIVER = Path("/proc/driver/nvidia/version")


def seen(attention: list[str]) -> dict[str, Any]:
    """Returns environment, device and versions of this process.

    Args:
        attention: Its model's.
    """
    import torch

    device = "cpu"
    if torch.cuda.is_available():
        card = torch.cuda.get_device_properties(torch.cuda.current_device())
        device = f"{card.name}, capability {card.major}.{card.minor}"
    return {
        "pid": os.getpid(),
        "device": device,
        "driver": DRIVER.read_text().splitlines()[0] if DRIVER.is_file() else None,
        "environment": {name: os.environ.get(name) for name in ENVIRONMENT},
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
        "attention": attention,
        "versions": versions_here((*PACKAGES, "flash-attn")),
    }


def seen_by_worker(worker: Any) -> dict[str, Any]:
    """Runs inside a vLLM worker."""
    layers = worker.vllm_config.compilation_config.static_forward_context.values()
    backends = {layer.attn_backend for layer in layers if hasattr(layer, "attn_backend")}
    return seen(sorted(backend.get_name() for backend in backends))


class Seen(Extension):
    """In every training process."""

    def seen(self) -> dict[str, Any]:
        return seen([self.trainer.actor.model.module.config._attn_implementation])
