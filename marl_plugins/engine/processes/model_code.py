"""Models that bring code of their own, refused before anything of upstream's sees them.

Upstream passes `trust_remote_code=True` wherever it loads a model or a tokenizer, and gives it to
vLLM.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.plan.models import code_problems, in_folder


def refuse_code(models: Iterable[str]) -> None:
    """Looks at models, in folders and on the Hugging Face hub.

    Raises:
        ConfigurationError: At least one of them brings code, or leads to another model.
    """
    problems: list[Problem] = []
    for model in dict.fromkeys(models):
        folder = Path(model)
        problems += (
            code_problems(partial(in_folder, folder))
            if folder.is_dir()
            else _problems_on_hub(model)
        )
    if problems:
        raise ConfigurationError(problems)


def _problems_on_hub(model: str) -> list[Problem]:
    find = partial(_download, model)
    problems = code_problems(find)
    if adapter := find("adapter_config.json"):
        got = (
            f"{model} is an adapter, and transformers would load the model that it names, which "
            "may bring code"
        )
        fix = "merge the two into one model, or add --trust_remote_code"
        problems.append(Problem("models.adapter", at(file=adapter), got, fix=fix))
    return problems


def _download(model: str, name: str) -> Path | None:
    """A file of a model, from the cache where the hub cannot be reached; None if there is none.

    What else is wrong with the model is said when its tokenizer is loaded.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(model, name))
    except (OSError, ValueError):
        return None
