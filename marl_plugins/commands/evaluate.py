"""`openrlhf eval`: any models on a recipe's held-out tasks, without training. Engines only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.commands.train import print_plan
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.engines_only import NO_TASKS, models_parser, planned
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.tasks import known_tasks
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.runtime.engines_only import with_engines


def parser() -> UpstreamParser:
    """Returns the flags of `openrlhf eval` that `openrlhf train` does not have."""
    own = models_parser("openrlhf eval")
    own.usage = (
        "openrlhf eval --recipe RECIPE [--models FOLDER [--only NAME ...]] [flags of "
        "openrlhf train]"
    )
    own.description = "Success of a recipe's system on its held-out tasks, with whatever models."
    own.epilog = (
        "Without --models the recipe's own models are evaluated; a hub name or folder for one "
        "policy is "
        "--policy.NAME.actor.model_name_or_path. --eval.n_samples_per_prompt and "
        "--eval.temperature say how, --eval.dataset on "
        "what, --json prints one object. All flags: openrlhf train --help."
    )
    return own


def main(words: Sequence[str]) -> int:
    if "--help" in words or "-h" in words:
        print(parser().format_help(), end="")
        return 0
    plan, options = planned(words, parser())
    if known_tasks(plan, "eval") == []:
        raise ConfigurationError(NO_TASKS)
    if plan.options.dry_run:
        return print_plan(plan, {})
    result = evaluate(plan, options.models)
    if plan.options.json:
        print(json.dumps(result))
    return 0 if result["answered"] else 1


def evaluate(plan: Plan, begun: Path | None = None) -> dict[str, Any]:
    """Returns the held-out outcome with its interval; what is lost to infrastructure is in neither
    and is counted apart.

    Args:
        begun: The run's output folder that the models are of.

    Raises:
        ConfigurationError: There are no held-out tasks, or a model does not load.
    """
    from marl_plugins.engine.runtime.metrics import evaluation

    run, display = plan.run, Display(plan.options.json)
    result, trajectories = with_engines(
        plan,
        display,
        lambda session: evaluation(session.rollout, session.eval_tasks, run.args.eval, display),
        begun,
        needs_tasks=True,
    )
    display.evaluation(None, result, trajectories)
    models = {p.name: p.shown_model for p in run.policies}  # as they were named
    return {
        **{name.removeprefix("eval/"): value for name, value in result.items()},
        "models": models,
    }
