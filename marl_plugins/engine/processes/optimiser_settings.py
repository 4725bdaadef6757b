"""A resumed policy trains with the settings that its flags give, not with those that were saved.

DeepSpeed's checkpoint brings back the optimiser's groups and the schedule's base rates: without
this a changed
`--actor.adam.lr` of a resumed run (`--resume_with_changes`) would have no effect. Where nothing was
changed, every value set here is the one that was loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from openrlhf.utils.deepspeed import DeepspeedStrategy

SETTINGS = ("initial_lr", "betas", "eps", "weight_decay", "momentum", "ns_steps", "nesterov")
"""What flags say of a group of an optimiser; all else in it is state."""


def keep_settings_when_loading(strategy: DeepspeedStrategy) -> None:
    """Lets upstream's strategy load a checkpoint without the settings in it, and name one that
    cannot be loaded."""
    load = strategy.load_ckpt

    def load_ckpt(engine: DeepSpeedEngine, folder: str, *args: Any, **kwargs: Any) -> Any:
        schedule = engine.lr_scheduler
        groups = [{k: g[k] for k in SETTINGS if k in g} for g in schedule.optimizer.param_groups]
        rates = list(schedule.base_lrs)
        latest = Path(folder, "latest")
        step = latest.read_text(encoding="utf-8").strip() if latest.is_file() else ""
        try:
            loaded = load(engine, folder, *args, **kwargs)
        except Exception as error:  # whatever torch and DeepSpeed make of a damaged file
            raise _unloadable(folder, step, f"{type(error).__name__}: {error}") from error
        if loaded[0] is None:
            if step:
                raise _unloadable(folder, step, "DeepSpeed finds no checkpoint of this name")
            return loaded
        schedule.base_lrs = rates
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        now = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
        for group, settings, rate in zip(schedule.optimizer.param_groups, groups, now, strict=True):
            group.update(settings, lr=rate)
        schedule._last_lr = now
        return loaded

    strategy.load_ckpt = load_ckpt


def _unloadable(folder: str, step: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        Problem(
            "resume.unloadable",
            got=f"the checkpoint {Path(folder, step)} cannot be loaded: {why.splitlines()[0]}",
            fix="use the step before (docs/resume.md), or another --ckpt.path",
        )
    )
