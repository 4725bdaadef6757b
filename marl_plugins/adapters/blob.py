"""An adapter as bytes: safetensors, with PEFT's configuration in the head's metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

KEY = "adapter_config"


def packed(tensors: Mapping[str, torch.Tensor], config: Mapping[str, Any]) -> bytes:
    """Returns an adapter's tensors and configuration as bytes."""
    own = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    text = json.dumps(dict(config), default=sorted)
    blob: bytes = safetensors.torch.save(own, {KEY: text})
    return blob


def packed_folder(folder: Path) -> bytes:
    """Returns the adapter that a folder of PEFT's holds, packed."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return packed(safetensors.torch.load_file(folder / "adapter_model.safetensors"), config)


def unpacked(blob: bytes) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns the tensors and the configuration that were packed.

    Raises:
        LookupError: The bytes are no adapter.
    """
    size = int.from_bytes(blob[:8], "little")
    metadata = json.loads(blob[8 : 8 + size]).get("__metadata__", {})
    if KEY not in metadata:
        raise LookupError("these weights are a whole model's, and an adapter was expected")
    config: dict[str, Any] = json.loads(metadata[KEY])
    return safetensors.torch.load(blob), config
