"""Checks of models, as far as their names and the small files of their folders show."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.tiny import is_tiny
from marl_plugins.core.recipe.tiny import parse as parse_tiny

CONFIGURATIONS = (
    *("config.json", "tokenizer_config.json"),
    *("processor_config.json", "preprocessor_config.json", "video_preprocessor_config.json"),
)
"""Files of a model that may name code of its own (`auto_map`)."""
GENERATE = "custom_generate/generate.py"
"""What transformers runs without its being named anywhere."""


def check_models(args: SimpleNamespace, trusted: bool) -> list[Problem]:
    """Returns what is wrong with the models of a policy and its critic.

    Args:
        trusted: Whether code that they bring along may run (`--trust_remote_code`).
    """
    model, critic = args.actor.model_name_or_path, args.critic.model_name_or_path
    problems = model_problems(model, trusted)
    if critic not in (None, model):
        problems += [
            p.within(flag="critic.model_name_or_path") for p in model_problems(critic, trusted)
        ]
    return problems


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
        return [
            Problem(
                "models.none",
                got="it has no model",
                fix="give `model:` in the recipe or --actor.model_name_or_path",
            )
        ]
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
    path = Path(model)
    if path.is_file():
        return [
            Problem(
                "models.file",
                got=f"model {model!r} is a file",
                fix="a folder with config.json, weights and tokenizer is expected",
            )
        ]
    looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
    if looks_local and not path.is_dir():
        return [
            Problem(
                "models.unknown",
                got=f"model {model!r} is neither a folder that exists nor a hub name (owner/name)",
            )
        ]
    return []


def offline_warnings(
    names: Iterable[str | None], kind: Literal["model", "dataset"]
) -> list[Problem]:
    """Returns the warnings of names of the hub's that are not on this machine, while the
    environment says that it is offline.

    Args:
        names: Of models or data sets; folders, files and `tiny` models are none of the hub's.
    """
    flags = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE" if kind == "model" else "HF_DATASETS_OFFLINE")
    offline_flag = next(
        (flag for flag in flags if os.environ.get(flag, "").upper() in ("1", "ON", "YES", "TRUE")),
        None,
    )
    home = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    hub = Path(
        os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub"
    )
    sets = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets")
    return [
        Problem(
            "hub.offline",
            got=f"{kind} {name!r} is the hub's, it is not in {hub}, and {offline_flag} says that "
            "this machine is offline",
            fix="download it first, or name a folder",
            severity="warning",
        )
        for name in dict.fromkeys(filter(None, names))
        if offline_flag and not is_tiny(name) and not Path(name).exists()
        if not (hub / f"{kind}s--{name.replace('/', '--')}").is_dir()
        if kind == "model" or not (sets / name.replace("/", "___")).is_dir()
    ]


def hub_warnings(models: Iterable[str]) -> list[Problem]:
    """Returns the warnings of names that are the hub's for want of a folder, although a folder was
    probably meant."""
    return [
        Problem(
            "models.hub",
            got=(
                f"model {model!r} is loaded from the hub: the folder {Path(model).parent} is here "
                "and has no "
                f"{Path(model).name} in it"
            ),
            severity="warning",
        )
        for model in dict.fromkeys(models)
        if model and not is_tiny(model) and not Path(model).exists() and Path(model).parent.is_dir()
    ]


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


def _config_of(model: str) -> dict[str, Any]:
    """config.json of a model's folder; empty where there is none or it is wrong, which is reported
    by itself."""
    try:
        return read_object(Path(model) / "config.json") if Path(model).is_dir() else {}
    except ConfigurationError:
        return {}


def _config_problems(folder: Path) -> list[Problem]:
    """Returns what config.json says of a model that cannot be trained here."""
    file = folder / "config.json"
    if not file.is_file():
        return [Problem("models.no_config", at(folder=folder), "the model has no config.json")]
    try:
        config = read_object(file)
    except ConfigurationError as error:
        return error.problems
    names = config.get("architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return [
            Problem(
                "models.architecture",
                at(file=file),
                f"names no architecture (`architectures`), got {names!r}",
                fix="a causal language model is expected",
            )
        ]
    name = names[0]
    if "vision_config" in config:
        return [
            Problem(
                "models.vision",
                at(file=file),
                f"{name} is a vision-language model, which is not supported",
                fix="use a language model",
            )
        ]
    if not name.endswith("ForCausalLM"):
        return [
            Problem(
                "models.architecture",
                at(file=file),
                f"{name} is not a causal language model, whose architectures end with ForCausalLM",
            )
        ]
    if not config.get("auto_map") and not _known_to_transformers(name):
        return [
            Problem(
                "models.unknown_architecture",
                at(file=file),
                f"the installed transformers does not know the architecture {name}",
            )
        ]
    return []


def tokenizer_problems(folder: Path) -> list[Problem]:
    file = folder / "tokenizer_config.json"
    if not file.is_file():
        return [
            Problem(
                "models.no_tokenizer", at(folder=folder), "the model has no tokenizer_config.json"
            )
        ]
    try:
        config = read_object(file)
    except ConfigurationError as error:
        return error.problems
    templates = [folder / "chat_template.jinja", folder / "chat_template.json"]
    if config.get("chat_template") or any(template.is_file() for template in templates):
        return []
    return [
        Problem(
            "models.no_template",
            at(folder=folder),
            "the tokenizer has no chat template (chat_template.jinja, or `chat_template` in "
            "tokenizer_config.json)",
            fix="use an instruction-tuned model or add one",
        )
    ]


def weight_problems(folder: Path) -> list[Problem]:
    """Weights that are not there, or only as the pointers that Git LFS leaves in their place."""
    files = [*folder.glob("*.safetensors"), *folder.glob("*.bin")]
    if not files:
        return [
            Problem(
                "models.no_weights",
                at(folder=folder),
                "the model has no weights (*.safetensors, *.bin)",
            )
        ]
    pointers = [
        file
        for file in files
        if file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs")
    ]
    return [
        Problem(
            "models.pointer",
            got=f"{file} is a pointer of Git LFS, not weights",
            fix=f"run `git lfs pull` in {folder}",
        )
        for file in pointers[:1]
    ]


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
        value = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            Problem("files.unreadable", got=f"cannot read {file}: {error.strerror}")
        ) from None
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            Problem(
                "files.json",
                at(line=f"{file}:{error.lineno}"),
                f"not JSON: {error.msg} at column {error.colno}",
            )
        ) from None
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(
            Problem("files.json", at(file=file), f"not JSON: {error}")
        ) from None
    if not isinstance(value, dict):
        raise ConfigurationError(
            Problem("files.json", at(file=file), str(type(value).__name__), expected="an object")
        )
    return value


def _known_to_transformers(architecture: str) -> bool:
    """Returns whether the installed transformers names an architecture; looked up in its source,
    because importing it takes seconds."""
    spec = importlib.util.find_spec("transformers")
    file = (
        Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
        if spec and spec.origin
        else None
    )
    return (
        file is None
        or not file.is_file()
        or f'"{architecture}"' in file.read_text(encoding="utf-8")
    )
