"""Whole models in place of adapters (PEFT folders), for engines that answer with one model each."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

CONFIG = "adapter_config.json"


def base_of(folder: Path) -> str:
    """Returns the model that an adapter belongs to; empty where a folder holds none.

    Raises:
        ConfigurationError: The model is a folder that is gone.
    """
    file = folder / CONFIG
    if not file.is_file():
        return ""
    base = str(json.loads(file.read_text(encoding="utf-8")).get("base_model_name_or_path") or "")
    if base.startswith((".", "/")) and not Path(base).is_dir():
        got = f"it is an adapter of {base}, which is not there"
        fix = "put the model there, or name another in base_model_name_or_path"
        raise ConfigurationError(Problem("eval.base_gone", at(file=file), got, fix=fix))
    return base


def merge(adapter: Path, into: Path) -> None:
    """Writes the model of an adapter with the adapter added to its weights, in the model's own
    dtype.

    Raises:
        ConfigurationError: The adapter does not fit the model that it names.
    """
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = base_of(adapter)
    model = AutoModelForCausalLM.from_pretrained(base, dtype="auto")
    dtype = model.dtype
    try:
        merged = PeftModel.from_pretrained(model.float(), str(adapter)).merge_and_unload()
    except (RuntimeError, ValueError, KeyError) as error:
        got = f"it does not fit the model that it names, {base}: {str(error).splitlines()[0]}"
        raise ConfigurationError(
            Problem("eval.other_base", at(file=adapter / CONFIG), got)
        ) from error
    merged.to(dtype).save_pretrained(into)
    for file in adapter.iterdir():
        if file.name.startswith(
            ("tokenizer", "chat_template", "vocab", "merges", "special_tokens", "added_tokens")
        ):
            shutil.copy(file, into / file.name)
