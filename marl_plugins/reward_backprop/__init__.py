"""Reward backpropagation: process scores joined with what the outcome says of each action (MAPPA,
appendix F).

    forward    p_t, the score of an action by itself, from the coach while the rollout continues
    backward   delta_t, from the outcome's value v along the dependency graph, last actions first
               (backward.py); made to add up to v (eq. 7)
    reward     f_t = alpha p_t + beta delta_t (eq. 6), recorded as the terms `process` and
               `contribution`

v is 2R - 1 for an outcome R in [0, 1], so that a failure is blamed and a success credited; for an
outcome of several parts
`--reward_backprop.weights` gives the weight of each. Where roles have outcomes of their own each
value is traced back by itself, and an action gets its contribution to its own role's. The
attributor is a set of rules (rules.py) or the coach's model (model.py).

Where one attribution is unavailable the decomposition of that trajectory is unknown, and all its
actions are left out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins import (
    ConfigurationError,
    InfrastructureFailure,
    Problem,
    all_of,
    at,
    at_least,
    checked_score,
    hookimpl,
    meant,
    recipe_file,
)

if TYPE_CHECKING:
    from marl_plugins import Run, Trajectory
    from marl_plugins.reward_backprop.backward import Attributor

NAME = "reward_backprop"
"""Under which actions keep its notes."""
PROMPT = Path(__file__).parent / "prompts" / "attribute.md"


@dataclass
class BackpropState:
    """The attributor of a run, and the numbers of the current step."""

    attributor: Attributor | None = None
    metrics: dict[str, float] = field(default_factory=dict)


def part_weights(word: str) -> str:
    """Returns the type of --reward_backprop.weights: JSON, checked and kept as text (nested flags
    cannot hold a mapping)."""
    try:
        weights = parse_weights(word)
        if not (weights and all(0 < w < math.inf for w in weights.values())):
            raise ValueError("weights must be above 0")
    except (ValueError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(
            f"{word!r}: {error}; expected a JSON object of names and weights"
        ) from None
    return word


def parse_weights(word: str) -> dict[str, float]:
    return {str(name): float(weight) for name, weight in json.loads(word).items()}


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reward backpropagation (marl_plugins.reward_backprop)")
    add = group.add_argument
    add(
        "--reward_backprop.alpha",
        type=at_least(0, float),
        default=1.0,
        help="weight of an action's own score p in its reward, alpha * p + beta * delta",
    )
    add(
        "--reward_backprop.beta",
        type=at_least(0, float),
        default=1.0,
        help="weight of its contribution delta to the outcome",
    )
    add(
        "--reward_backprop.attributor",
        choices=["rules", "model"],
        default="rules",
        help="rules over what can be read of an action, offline; or the coach's model "
        "(--coach.model, --coach.policy)",
    )
    add(
        "--reward_backprop.prompt",
        type=recipe_file,
        metavar="FILE",
        help="the model's prompt; default: the package's",
    )
    add(
        "--reward_backprop.weights",
        type=part_weights,
        metavar="JSON",
        help='weight of each part of an outcome: \'{"accuracy": 2, "f1": 1}\', from a grader that '
        "writes "
        "trajectory.outcome_parts; default: the outcome itself",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    try:
        run.state(BackpropState).attributor = make_attributor(run)
    except ConfigurationError as error:
        return error.problems
    return [] if keeps_rewards(run) else run.replaced_rewards(__name__)


def keeps_rewards(run: Run) -> bool:
    """Returns whether actions have rewards beside the outcome, of which a contribution is made."""
    return bool(run.scorers) or "marl_plugins.rewards" in run.plugins


def make_attributor(run: Run) -> Attributor:
    """Returns the attributor that the flags name.

    Raises:
        ConfigurationError: Its prompt cannot be used, or there is no coach whose model it could
            ask.
    """
    from marl_plugins.asking.prompts import duties_of

    args = run.args.reward_backprop
    duties = duties_of(run)
    if args.attributor == "rules":
        from marl_plugins.reward_backprop.rules import Rules

        return Rules(duties)
    from marl_plugins.asking.askers import Askers
    from marl_plugins.asking.policy import PolicyTransport
    from marl_plugins.reward_backprop.model import ModelAttributor, read_prompt

    prompt = read_prompt(Path(args.prompt or PROMPT))
    asker = run.state(Askers).first
    if asker is None:
        raise ConfigurationError(
            Problem(
                "reward_backprop.no_model",
                got=(
                    "--reward_backprop.attributor model asks the coach's model: name --plugin "
                    "marl_plugins.coach before marl_plugins.reward_backprop, with --coach.model "
                    "NAME or --coach.policy NAME"
                ),
                flags=("reward_backprop.attributor", "coach.model", "coach.policy"),
            )
        )
    if (
        isinstance(asker.transport, PolicyTransport)
        and run.policy_args[asker.transport.policy].vllm.enable_sleep
    ):
        raise ConfigurationError(
            Problem(
                "reward_backprop.sleeping",
                got=(
                    f"--reward_backprop.attributor model asks policy {asker.transport.policy!r} "
                    "after the rollout, when "
                    "its engines sleep (--vllm.enable_sleep) because it is trained"
                ),
                fix="use rules, or a coach that is not trained",
                flags=("reward_backprop.attributor", "vllm.enable_sleep"),
            )
        )
    return ModelAttributor(asker, prompt, duties)


def value_of(trajectory: Trajectory, role: str, weights: Mapping[str, float]) -> float | None:
    """Returns v, the value in [-1, 1] of a role's outcome; None where it has none.

    Args:
        weights: Of the outcome's parts; empty for the outcome itself.

    Raises:
        ConfigurationError: The grader did not write a part that has a weight, or gave outcomes per
            role, which have no parts.
        ValueError: A part is not in [0, 1].
    """
    outcome = trajectory.outcome_of(role)
    if outcome is None:
        return None
    if (
        not weights or trajectory.agent_failure
    ):  # agents that failed have an outcome of 0 in every part
        return 2.0 * outcome - 1.0
    where = at(flag="reward_backprop.weights", task=trajectory.task.id)
    if trajectory.outcomes:
        got = "weighs the parts of one outcome of the team, and the grader gave one per role"
        fix = "leave the flag out, or let the grader return one number"
        raise ConfigurationError(Problem("reward_backprop.per_role", where, got, fix=fix))
    parts = trajectory.outcome_parts
    missing = sorted(weights.keys() - parts.keys())
    if missing:
        got, fix = (
            f"names {', '.join(missing)}, which the grader did not write",
            meant(missing[0], parts),
        )
        raise ConfigurationError(Problem("reward_backprop.no_part", where, got, fix=fix))
    total = sum(weights.values())
    checked = {
        name: checked_score(parts[name], f"outcome's part {name!r}") or 0.0 for name in weights
    }
    return sum(w * (2.0 * checked[name] - 1.0) for name, w in weights.items()) / total


@hookimpl
async def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    """Returns f_t for every action of every trajectory that has an outcome."""
    alive = [t for t in trajectories if not t.infrastructure_failure and t.actions]
    results = await all_of(credit_trajectory(t, run) for t in alive)
    lost = [
        t
        for t, result in zip(alive, results, strict=True)
        if isinstance(result, InfrastructureFailure)
    ]
    gaps = [result for result in results if isinstance(result, float)]
    run.state(BackpropState).metrics = measure(alive, gaps, len(lost))
    if lost:  # only a model's attributions can be unavailable
        from marl_plugins.asking.askers import Askers

        judged, missing = ([a for t in some for a in t.actions] for some in (alive, lost))
        if run.state(Askers).leave_out_if_too_many_are_missing(judged, missing):
            run.state(BackpropState).metrics["coach/step_left_out"] = 1.0
    return trajectories


async def credit_trajectory(
    trajectory: Trajectory, run: Run
) -> float | InfrastructureFailure | None:
    """Writes one trajectory's rewards.

    Returns:
        How far its contributions were from adding up (the mean, where roles have outcomes of their
        own); or why there are none; None without an outcome or a reward.
    """
    from marl_plugins.reward_backprop.backward import backward, conserve

    args, attributor = run.args.reward_backprop, run.state(BackpropState).attributor
    assert attributor is not None
    weights = parse_weights(args.weights or "{}")
    values = {
        role: value_of(trajectory, role, weights)
        for role in dict.fromkeys(a.role for a in trajectory.actions)
    }
    # Else a reward is the outcome, which a contribution is made of.
    made_of_parts = trajectory.actions_scored or "marl_plugins.rewards" in run.plugins
    different = {value for value in values.values() if value is not None}
    if not different or all(action.reward is None for action in trajectory.actions):
        for action in trajectory.actions:
            action.reward, action.terms = None, {}
        return None
    try:
        parts_by_value = {
            value: await backward(
                trajectory,
                describe_outcome(trajectory, [r for r in values if values[r] == value]),
                value,
                attributor,
            )
            for value in sorted(different)
        }
    except InfrastructureFailure as failure:
        for action in trajectory.actions:
            action.reward, action.terms, action.unscored = None, {}, action.unscored or failure.kind
        return failure
    raw = {
        value: {path: part.contribution for path, part in parts.items()}
        for value, parts in parts_by_value.items()
    }
    contributions = {value: conserve(parts, value) for value, parts in raw.items()}
    for action in trajectory.actions:
        value = values[action.role]
        if value is None:
            action.reward, action.terms = None, {}
            continue
        delta = contributions[value][action.path]
        part = parts_by_value[value][action.path]
        action.notes[NAME] = {"contribution": delta, "why": part.why, "passed_on": part.passed_on}
        if action.reward is not None:
            process = action.reward if made_of_parts else 0.0
            action.terms = {"process": args.alpha * process, "contribution": args.beta * delta}
            action.reward = sum(action.terms.values())
    return statistics.fmean(abs(value - sum(parts.values())) for value, parts in raw.items())


def describe_outcome(trajectory: Trajectory, roles: Sequence[str]) -> str:
    """Returns the outcome of some roles, which is the same for them, as an attributor reads it."""
    if trajectory.agent_failure:
        return f"the team failed: {trajectory.detail or trajectory.agent_failure}"
    if trajectory.outcomes:
        return f"{trajectory.outcome_of(roles[0]):.3g} of 1 for {', '.join(roles)}"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in trajectory.outcome_parts.items())
    return f"{trajectory.outcome:.3g} of 1" + (f" ({parts})" if parts else "")


def measure(
    trajectories: Sequence[Trajectory], gaps: Sequence[float], lost: int
) -> dict[str, float]:
    """Returns the metrics of a step's contributions.

    Args:
        gaps: How far contributions were from adding up, by trajectory.
        lost: Trajectories without contributions.
    """
    by_role: dict[str, list[float]] = defaultdict(list)
    for action in (a for t in trajectories for a in t.actions):
        if NAME in action.notes:
            by_role[action.role].append(action.notes[NAME]["contribution"])
    metrics: dict[str, float] = {}
    for role, contributions in sorted(by_role.items()):
        metrics[f"backprop/{role}/contribution"] = statistics.fmean(contributions)
        metrics[f"backprop/{role}/spread"] = statistics.pstdev(contributions)
    if trajectories:
        metrics["backprop/missing"] = lost / len(trajectories)
    if gaps:
        metrics["backprop/gap"] = statistics.fmean(gaps)
    return metrics


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    state = run.state(BackpropState)
    metrics |= state.metrics
    state.metrics = {}
