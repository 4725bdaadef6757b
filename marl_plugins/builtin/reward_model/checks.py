"""Checks the files of a reward model before it is loaded: its head, and how many labels that has.

Upstream makes a head of one label without a bias, called `score` (models/model.py), and loads what
of the file has its name. A head that is not there would be a random one, without a word.
"""

from __future__ import annotations

from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.models import (
    missing_model,
    positions_of,
    read_object,
    tensors_in,
    tokenizer_problems,
    weight_problems,
)

FLAG = "reward.model_name_or_path"


def check_model(run: Run) -> list[Problem]:
    """Returns what is wrong with the run's reward model, as far as it lies in a folder; one of the
    hub's is looked at when the run starts."""
    model: str = run.args.reward.model_name_or_path
    if missing := missing_model(model):
        return [problem.within(flag=FLAG) for problem in missing]
    if not Path(model).is_dir():
        return []
    problems = problems_of(Path(model), run)
    longest, most = positions_of(model), run.args.data.max_len
    if not problems and longest is not None and longest < most:
        got = (
            f"takes {longest} tokens, and --data.max_len is {most}: what is longer is left out "
            "of training"
        )
        fix = "lower --data.max_len, or take a model with more positions"
        problems.append(
            Problem("reward_model.short", at(flag=FLAG), got, fix=fix, severity="warning")
        )
    return problems


def problems_of(folder: Path, run: Run) -> list[Problem]:
    """Returns what is wrong with a reward model in a folder."""
    file = folder / "config.json"
    try:
        config = read_object(file)
        problems = [
            p.within(flag=FLAG) for p in (*tokenizer_problems(folder), *weight_problems(folder))
        ]
        problems = problems or _head_problems(
            folder, config.get("value_head_prefix", run.args.ds.value_head_prefix)
        )
    except ConfigurationError as error:
        return [problem.within(flag=FLAG) for problem in error.problems]
    if run.args.reward.normalize_enable and not ("mean" in config and "std" in config):
        got = f"{file} has no `mean` and `std`, so nothing would be normalised"
        fix = "remove the flag, or write them there, as upstream's train_rm does"
        problems.append(
            Problem("reward_model.no_statistics", at(flag="reward.normalize_enable"), got, fix=fix)
        )
    return problems


def _head_problems(folder: Path, prefix: str) -> list[Problem]:
    """Returns what is wrong with the head of a reward model.

    Args:
        prefix: What it is called.
    """
    where, name = at(flag=FLAG, folder=folder), f"{prefix}.weight"
    shapes = {name: shape for name, (_, shape) in tensors_in(folder).items()}
    if not shapes:
        got = "has no safetensors, and of other files it is not known which head they hold"
        fix = "save it as safetensors"
        return [Problem("reward_model.no_safetensors", where, got, fix=fix)]
    if name not in shapes:
        heads = [
            n.removesuffix(".weight")
            for n, s in shapes.items()
            if len(s) == 2 and s[0] == 1 and n.endswith(".weight")
        ]
        got = f"has no head {prefix!r}, so rewards would be random"
        fix = (
            f'add "value_head_prefix": "{heads[0]}" to its config.json'
            if heads
            else "name a reward model"
        )
        return [Problem("reward_model.no_head", where, got, fix=fix)]
    if shapes[name][0] != 1:
        got = f"its head has {shapes[name][0]} labels"
        fix = "name a reward model, which has num_labels 1"
        return [Problem("reward_model.labels", where, got, "one label, the reward", fix)]
    return []
