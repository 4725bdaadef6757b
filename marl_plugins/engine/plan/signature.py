"""The signature of an engine: what two engines must have in common so that one can take over the
weights of the other one's policy.

vLLM takes a state with fewer layers or other heads without a word, and an engine keeps the end
tokens, the tokenizer and the limits that it was started with.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.recipe.tiny import is_tiny, parse
from marl_plugins.engine.plan.models import tensors_in

NAMES = ("_name_or_path", "name_or_path", "transformers_version")
"""Entries of a model's files that say where it came from."""
TOKENIZER = (
    "token",
    "vocab",
    "merges",
    "special_tokens",
    "added_tokens",
    "chat_template",
    "spiece",
    "sentencepiece",
)
"""Beginnings of the names of a tokenizer's files."""
FLAGS = (
    "tensor_parallel_size",
    "enable_prefix_caching",
    "enforce_eager",
    "gpu_memory_utilization",
    "enable_sleep",
)


def engine_signature(args: SimpleNamespace) -> dict[str, Any]:
    """Returns the settings that engines of a policy are started with, by part of the signature.

    A model that is not in a local folder is known by its name alone.

    Args:
        args: The policy's flags.
    """
    vllm = vars(args.vllm)
    flags = {f"vllm.{name}": vllm[name] for name in FLAGS if name in vllm}
    flags |= {
        "data.max_len": args.data.max_len,
        "train.full_determinism_enable": args.train.full_determinism_enable,
    }
    model = args.actor.model_name_or_path
    # another model's would change their weights too
    adapters = {"adapters of": model} if args.ds.lora.rank else {}
    return {**_of_model(model), **adapters, **{f"--{name}": value for name, value in flags.items()}}


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Returns the parts in which two signatures differ."""
    return [
        name
        for name in {**one, **other}
        if name not in one or name not in other or one[name] != other[name]
    ]


def engine_differences(one: SimpleNamespace, other: SimpleNamespace) -> list[str]:
    """Returns the parts in which engines of two policies differ as they are started; empty: one can
    take over the weights of the other's policy.

    Args:
        one, other: The policies' flags.
    """
    return differences(engine_signature(one), engine_signature(other))


def _of_model(model: str) -> dict[str, Any]:
    if is_tiny(model):
        return {"model": {name: value for name, value in parse(model).items() if name != "seed"}}
    folder = Path(model)
    if not folder.is_dir():
        return {"model": model}
    return {
        "config.json": _read(folder / "config.json"),
        "generation_config.json": _read(folder / "generation_config.json"),
        "shapes and dtypes of the weights": _weights(folder),
        "tokenizer files": {
            file.name: _read(file)
            if file.suffix == ".json"
            else hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(folder.iterdir())
            if file.is_file() and file.name.startswith(TOKENIZER)
        },
    }


def _read(file: Path) -> Any:
    """A JSON file without its names; None where there is none."""
    if not file.is_file():
        return None
    content = json.loads(file.read_text(encoding="utf-8"))
    return (
        {k: v for k, v in content.items() if k not in NAMES}
        if isinstance(content, dict)
        else content
    )


def _weights(folder: Path) -> dict[str, Any]:
    """Name, shape and dtype of every tensor, as the heads of safetensors files say; of other files
    with weights their sizes."""
    sizes = {file.name: file.stat().st_size for file in sorted(folder.glob("*.bin"))}
    return tensors_in(folder) or sizes
