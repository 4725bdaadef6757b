"""The requirements of a recipe's run: a valid plan, trackers, GPUs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.core.recipe.tiny import is_tiny

if TYPE_CHECKING:
    from marl_plugins.commands.doctor.gpus import Cards
    from marl_plugins.core.run import Run

CHANGE_IT = (
    "change it in the recipe (openrlhf docs recipes) or on the command line (openrlhf docs flags)"
)
"""What to do about a problem of the plan that does not say so itself."""


def try_plan(words: Sequence[str]) -> tuple[Run | None, list[Finding]]:
    """Returns the checked run for these flags of `openrlhf train`; if they are wrong, None and
    every problem."""
    from marl_plugins.engine.hosts import upstream_cli
    from marl_plugins.engine.plan.build import build_plan

    try:
        upstream_cli.upstream_root()
    except ConfigurationError:
        return None, []  # reported by upstream.check_upstream
    try:
        with contextlib.redirect_stdout(sys.stderr):  # what a user's code prints is no finding
            run = build_plan(words).run
    except ConfigurationError as wrong:
        return None, [
            error("plan", str(replace(problem, fix="")), problem.fix or CHANGE_IT)
            for problem in wrong.problems
        ]
    roles = ", ".join(run.recipe.roles)
    return run, [
        ok(
            "plan",
            f"{run.recipe.name}: {len(run.recipe.roles)} roles ({roles}) on {len(run.policies)} "
            "policies",
        )
    ]


def uses_hub_models(run: Run | None) -> bool:
    """Returns whether a policy's model comes from the hub."""
    return run is not None and any(
        not is_tiny(p.model) and not Path(p.model).is_dir() for p in run.policies
    )


def check_devices(run: Run, cards: Cards) -> list[Finding]:
    """Returns the GPUs that the run's layout requires, against those of this machine."""
    from marl_plugins.engine.plan.devices import FEWER, needed_devices

    needed = needed_devices(run)
    total, parts = (
        sum(needed.values()),
        ", ".join(f"{name} {count}" for name, count in needed.items()),
    )
    if run.device == "cpu":
        return [ok("layout", f"{total} logical GPUs ({parts})")]
    if os.environ.get("RAY_ADDRESS"):
        return [note("layout", f"needs {total} GPUs ({parts}) on the cluster at RAY_ADDRESS")]
    if not cards.cards:
        return [note("layout", f"needs {total} GPUs ({parts}); the number available is unknown")]
    if cards.visible < total:
        return [
            error("layout", f"needs {total} GPUs ({parts}), {cards.visible} are available", FEWER)
        ]
    return [ok("layout", f"needs {total} GPUs ({parts}), {cards.visible} are available")]


def check_trackers(run: Run) -> list[Finding]:
    """Returns the trackers that the run's flags ask for, and that are not installed."""
    asked = {"tensorboard": run.args.logger.tensorboard_dir, "wandb": run.args.logger.wandb.key}
    return [
        error(name, "not installed, and a flag of the run asks for it", f"pip install {name}")
        for name, flag in asked.items()
        if flag and find_spec(name) is None
    ]
