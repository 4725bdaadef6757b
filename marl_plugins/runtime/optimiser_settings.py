"""A resumed policy trains with the settings that its flags give, not with those that were saved.

DeepSpeed's checkpoint brings back the optimiser's groups and the schedule's base rates: without this a changed
`--actor.adam.lr` of a resumed run (`--resume_with_changes`) would have no effect. Where nothing was changed, every value set here
is the one that was loaded.
"""

from __future__ import annotations

from typing import Any

SETTINGS = ("initial_lr", "betas", "eps", "weight_decay", "momentum", "ns_steps", "nesterov")
"""What flags say of a group of an optimiser; all else in it is state."""


def keep_settings_when_loading(strategy: Any) -> None:
    """Let upstream's strategy load a checkpoint without the settings in it."""
    load = strategy.load_ckpt

    def load_ckpt(engine: Any, *args: Any, **kwargs: Any) -> Any:
        schedule = engine.lr_scheduler
        groups = [{k: g[k] for k in SETTINGS if k in g} for g in schedule.optimizer.param_groups]
        rates = list(schedule.base_lrs)
        loaded = load(engine, *args, **kwargs)
        if loaded[0] is None:  # there was no checkpoint
            return loaded
        schedule.base_lrs = rates
        factors = [factor(schedule.last_epoch) for factor in schedule.lr_lambdas]
        now = [rate * factor for rate, factor in zip(rates, factors, strict=True)]
        for group, settings, rate in zip(schedule.optimizer.param_groups, groups, now, strict=True):
            group.update(settings, lr=rate)
        schedule._last_lr = now
        return loaded

    strategy.load_ckpt = load_ckpt
