"""What is wrong with models, as far as their names and the small files of their folders show."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.tiny import is_tiny
from marl_plugins.core.tiny import parse as parse_tiny


def check_models(args: SimpleNamespace) -> list[str]:
    """What is wrong with the models of a policy and its critic."""
    model, critic = args.actor.model_name_or_path, args.critic.model_name_or_path
    problems = model_problems(model)
    if critic not in (None, model):
        problems += [f"--critic.model_name_or_path: {problem}" for problem in model_problems(critic)]
    return problems


def model_problems(model: str) -> list[str]:
    """What is wrong with one model."""
    if not model:
        return ["it has no model: give `model:` in the recipe or --actor.model_name_or_path"]
    if is_tiny(model):
        try:
            parse_tiny(model)
        except ConfigurationError as error:
            return error.problems
        return []
    path = Path(model)
    if not path.exists():
        looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
        return [f"model {model!r} is neither a folder that exists nor a hub name (owner/name)"] if looks_local else []
    if not path.is_dir():
        return [f"model {model!r} is a file; a folder with config.json, weights and tokenizer is expected"]
    return [*_config_problems(path), *_tokenizer_problems(path)]


def positions_of(model: str) -> int | None:
    """The most tokens that a model takes; None where it is not known here or the model is wrong, which is reported by itself."""
    try:
        if is_tiny(model):
            return parse_tiny(model)["positions"]
        config = _read_object(Path(model) / "config.json") if Path(model).is_dir() else {}
    except ConfigurationError:
        return None
    positions, scaling = config.get("max_position_embeddings"), config.get("rope_scaling")
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    return int(positions * factor) if isinstance(positions, int) and isinstance(factor, int | float) else None


def _config_problems(folder: Path) -> list[str]:
    """What config.json says of a model that cannot be trained here."""
    file = folder / "config.json"
    if not file.is_file():
        return [f"model folder {folder} has no config.json"]
    try:
        config = _read_object(file)
    except ConfigurationError as error:
        return error.problems
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return [f"{file}: names no architecture (`architectures`), got {names!r}; a causal language model is expected"]
    name = names[0]
    if "vision_config" in config:
        return [f"{file}: {name} is a vision-language model, which is not supported; use a language model"]
    if not name.endswith("ForCausalLM"):
        return [f"{file}: {name} is not a causal language model, whose architectures end with ForCausalLM"]
    if "auto_map" not in config and not _known_to_transformers(name):
        return [f"{file}: the installed transformers does not know the architecture {name}"]
    return []


def _tokenizer_problems(folder: Path) -> list[str]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return [f"model folder {folder} has no tokenizer_config.json"]
    try:
        config = _read_object(file)
    except ConfigurationError as error:
        return error.problems
    templates = [folder / "chat_template.jinja", folder / "chat_template.json"]
    if config.get("chat_template") or any(template.is_file() for template in templates):
        return []
    return [
        f"the tokenizer of model folder {folder} has no chat template (chat_template.jinja, or `chat_template` in "
        "tokenizer_config.json); use an instruction-tuned model or add one"
    ]


def _read_object(file: Path) -> dict[str, Any]:
    """A JSON file with an object.

    Raises:
        ConfigurationError: It is something else.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"cannot read {file}: {error.strerror}") from None
    except json.JSONDecodeError as error:
        raise ConfigurationError(f"{file}:{error.lineno}: not JSON: {error.msg} at column {error.colno}") from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{file}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigurationError(f"{file}: expected an object, got {type(value).__name__}")
    return value


def _known_to_transformers(architecture: str) -> bool:
    """Whether the installed transformers names an architecture; looked up in its source, because importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    file = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py" if spec and spec.origin else None
    return file is None or not file.is_file() or f'"{architecture}"' in file.read_text(encoding="utf-8")
