"""Checks of models, as far as their names and the small files of their folders show."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.kept_models import is_smollm2
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.core.recipe.tiny import parse as parse_tiny

CONFIGURATIONS = (
    "config.json",
    "tokenizer_config.json",
    "processor_config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
)
"""Files of a model that may name code of its own (`auto_map`)."""
GENERATE = "custom_generate/generate.py"
"""What transformers runs without its being named anywhere."""


def check_models(args: SimpleNamespace, trusted: bool) -> Iterator[Problem]:
    """Returns what is wrong with the models of a policy and its critic.

    Args:
        trusted: Whether code that they bring along may run (`--trust_remote_code`).
    """
    model, critic = args.actor.model_name_or_path, args.critic.model_name_or_path
    yield from model_problems(model, trusted)
    if critic not in (None, model):
        for problem in model_problems(critic, trusted):
            yield problem.within(flag="critic.model_name_or_path")


def code_problems(find: Callable[[str], Path | None]) -> list[Problem]:
    """Returns the files by which a model brings code of its own, which upstream and vLLM would
    import in every process.

    Args:
        find: A file of the model by its name; None if the model has none of that name.
    """
    reasons: dict[Path, str] = {}
    for name in CONFIGURATIONS:
        if file := find(name):
            try:
                config = read_object(file)
            except ConfigurationError as error:
                return error.problems
            if named := _named_code(config):
                reasons[file] = f"`auto_map` names code of the model's own ({named!r:.100})"
            elif "configuration_files" in config:
                reasons[file] = (
                    "`configuration_files` names others to be read in its place, which may name "
                    "code"
                )
    if file := find(GENERATE):
        reasons[file] = "code of the model's own"
    return [
        Problem(
            "models.code",
            at(file=file),
            f"{reason}, and it would run as you, in every process",
            fix="read it, then add --trust_remote_code",
        )
        for file, reason in reasons.items()
    ]


def in_folder(folder: Path, name: str) -> Path | None:
    """Returns a file of a model's folder, if it is there."""
    return file if (file := folder / name).is_file() else None


def model_problems(model: str, trusted: bool) -> list[Problem]:
    """Returns what is wrong with one model."""
    if not model:
        fix = "give `model:` in the recipe or --actor.model_name_or_path"
        return [Problem("models.none", got="it has no model", fix=fix)]
    if is_tiny(model):
        try:
            parse_tiny(model)
        except ConfigurationError as error:
            return error.problems
        return []
    path = Path(model)
    if not path.is_dir():
        return missing_model(model)
    code = [] if trusted else code_problems(partial(in_folder, path))
    return [*code, *_config_problems(path), *tokenizer_problems(path), *weight_problems(path)]


def missing_model(model: str) -> list[Problem]:
    """Returns what is wrong with a name that is no folder's; nothing where it may be one of the
    hub's."""
    if Path(model).is_dir() or is_smollm2(model):
        return []
    if Path(model).is_file():
        got, fix = f"model {model!r} is a file", "name its folder"
        if model.endswith(".gguf"):
            fix = f"openrlhf models add {model}, and name the model as that says"
        return [Problem("models.file", got=got, fix=fix)]
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        got = f"model {model!r} is neither a folder that exists nor a hub name (owner/name)"
        return [Problem("models.unknown", got=got)]
    return []


def positions_of(model: str) -> int | None:
    """Returns the most tokens that a model takes; None where it is not known here or the model is
    wrong, which is reported by itself."""
    if is_tiny(model):
        try:
            return parse_tiny(model)["positions"]
        except ConfigurationError:
            return None
    config = _config_of(model)
    positions, scaling = config.get("max_position_embeddings"), config.get("rope_scaling")
    factor = scaling.get("factor", 1) if isinstance(scaling, dict) else 1
    return (
        int(positions * factor)
        if isinstance(positions, int) and isinstance(factor, int | float)
        else None
    )


def dropout_of(model: str) -> list[str]:
    """Returns the dropouts above 0 in a model's configuration, as far as it is known here."""
    rates = {
        name: rate
        for name, rate in _config_of(model).items()
        if "dropout" in name or name.endswith("pdrop")
    }
    return [
        f"{name} {rate}"
        for name, rate in rates.items()
        if isinstance(rate, int | float) and rate > 0
    ]


def sliding_window_of(model: str) -> int | None:
    """Returns how many tokens back a model's windows reach, as far as it is known here; None where
    it has none."""
    config = _config_of(model)
    used = config.get("use_sliding_window", True)
    return config.get("sliding_window") if used else None


def _config_of(model: str) -> dict[str, Any]:
    """config.json of a model's folder; empty where there is none or it is wrong, which is reported
    by itself."""
    try:
        return read_object(Path(model) / "config.json") if Path(model).is_dir() else {}
    except ConfigurationError:
        return {}


def _config_problems(folder: Path) -> list[Problem]:
    """Returns what config.json says of a model that cannot be trained here; adapters have one,
    too."""
    if in_folder(folder, "adapter_config.json"):
        got = "it is an adapter, whose weights are what is added to a model's"
        fix = "merge the two into one model; `openrlhf eval` and `serve` take it with "
        fix += f"--models {folder.parent}"
        return [Problem("models.adapter", at(folder=folder), got, fix=fix)]
    file = folder / "config.json"
    if not file.is_file():
        return [Problem("models.no_config", at(folder=folder), "the model has no config.json")]
    try:
        config = read_object(file)
    except ConfigurationError as error:
        return error.problems
    names = config.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if str(name).endswith("ForCausalLM") and "vision_config" not in config:
        return []
    got = f"`architectures` names {name!r}{' with vision' * ('vision_config' in config)}"
    expected = "a causal language model, whose architecture ends with ForCausalLM"
    return [Problem("models.architecture", at(file=file), got, expected)]


def tokenizer_problems(folder: Path) -> list[Problem]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        got = "the model has no tokenizer_config.json"
        return [Problem("models.no_tokenizer", at(folder=folder), got)]
    try:
        config = read_object(file)
    except ConfigurationError as error:
        return error.problems
    templates = [folder / "chat_template.jinja", folder / "chat_template.json"]
    if config.get("chat_template") or any(template.is_file() for template in templates):
        return []
    got = "the tokenizer has no chat template (chat_template.jinja)"
    fix = "use an instruction-tuned model or add one"
    return [Problem("models.no_template", at(folder=folder), got, fix=fix)]


def weight_problems(folder: Path) -> list[Problem]:
    """Weights that are not there, or only as the pointers that Git LFS leaves in their place."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not files:
        got = "the model has no weights (*.safetensors, *.bin)"
        return [Problem("models.no_weights", at(folder=folder), got)]
    for file in files:
        with file.open("rb") as stream:
            if stream.read(23) == b"version https://git-lfs":
                got = f"{file} is a pointer of Git LFS, not weights"
                return [Problem("models.pointer", got=got, fix=f"run `git lfs pull` in {folder}")]
    return []


def tensors_in(folder: Path) -> dict[str, tuple[str, list[int]]]:
    """Returns the dtype and the shape of every tensor, as the heads of safetensors files say.

    Raises:
        ConfigurationError: One is no such file.
    """
    tensors: dict[str, Any] = {}
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            try:
                tensors |= json.loads(stream.read(size))
            except (ValueError, MemoryError, OverflowError):  # of any file its size may be any
                got, fix = "is no safetensors file", "download it again"
                broken = Problem("models.broken_weights", at(file=file), got, fix=fix)
                raise ConfigurationError(broken) from None
    tensors.pop("__metadata__", None)
    return {name: (tensor["dtype"], tensor["shape"]) for name, tensor in tensors.items()}


def _named_code(value: Any) -> Any:
    """The first `auto_map` that names something, at any depth: the parts of a processor have their
    own."""
    if isinstance(value, dict):
        return value.get("auto_map") or next(filter(None, map(_named_code, value.values())), None)
    return next(filter(None, map(_named_code, value)), None) if isinstance(value, list) else None


def read_object(file: Path) -> dict[str, Any]:
    """Reads a JSON file with an object.

    Raises:
        ConfigurationError: It is something else.
    """
    try:
        value = json.loads(read_text(file))
    except (ValueError, RecursionError) as error:
        line = f"{file}:{error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        where = at(line=line) or at(file=file)
        raise ConfigurationError(Problem("files.json", where, f"not JSON: {error}")) from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            Problem("files.json", at(file=file), str(type(value).__name__), expected="an object")
        )
    return value
