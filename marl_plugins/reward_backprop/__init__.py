"""Reward backpropagation: process scores joined with what the outcome says of each action (MAPPA, appendix F).

    forward    p_t, the score of an action by itself, from the coach while the rollout goes on
    backward   delta_t, from the outcome's value v along the dependency graph, last actions first (backward.py);
               made to add up to v (eq. 7)
    reward     f_t = alpha p_t + beta delta_t (eq. 6)

v is 2R - 1 for an outcome R in [0, 1], so that a failure is blamed and a success credited; for an outcome of several parts
`--reward_backprop.weights` says what each weighs. The attributor is a set of rules (rules.py) or the coach's model (model.py).

Where one attribution cannot be had the decomposition of that trajectory is unknown, and all its actions are left out.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, nearest
from marl_plugins.core.workflow import checked_score

if TYPE_CHECKING:
    import argparse

    from marl_plugins.core.trajectory import Trajectory
    from marl_plugins.reward_backprop.backward import Attributor
    from marl_plugins.run import Run

PROMPT = Path(__file__).parent / "prompts" / "attribute.md"


class _State:
    """The attributor of the run, and the numbers of the step in hand."""

    def __init__(self) -> None:
        self.attributor: Attributor | None = None
        self.alpha = self.beta = 1.0
        self.weights: dict[str, float] = {}
        self.metrics: dict[str, float] = {}


_state = _State()


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reward backpropagation (marl_plugins.reward_backprop)")
    add = group.add_argument
    add("--reward_backprop.alpha", type=float, default=1.0, help="what an action's own score weighs")
    add("--reward_backprop.beta", type=float, default=1.0, help="what its contribution to the outcome weighs")
    add(
        "--reward_backprop.attributor",
        choices=["rules", "model"],
        default="rules",
        help="rules over what can be read of an action, offline; or the coach's model (--coach.model, --coach.policy)",
    )
    add("--reward_backprop.prompt", metavar="FILE", help="the model's prompt; default: the package's")
    add(
        "--reward_backprop.weights",
        metavar="JSON",
        help='what each part of an outcome weighs: \'{"accuracy": 2, "f1": 1}\', from a grader that writes '
        "trajectory.outcome_parts; default: the outcome itself",
    )


@hookimpl
def marl_configure(run: Run) -> list[str]:
    global _state
    _state = _State()
    args = run.args.reward_backprop
    problems = [
        f"--reward_backprop.{name} {getattr(args, name):g}: expected 0 or more"
        for name in ("alpha", "beta")
        if not 0 <= getattr(args, name) < math.inf
    ]
    if args.alpha == args.beta == 0:
        problems.append("--reward_backprop.alpha and --reward_backprop.beta are both 0: every reward would be 0")
    _state.alpha, _state.beta = args.alpha, args.beta
    try:
        _state.weights = _weights(args.weights)
        _state.attributor = _attributor(run)
    except ConfigurationError as error:
        problems += error.problems
    return problems


def _weights(text: str | None) -> dict[str, float]:
    try:
        given = json.loads(text or "{}")
        weights = {str(name): float(weight) for name, weight in given.items()}
        if text is not None and not (weights and all(0 < w < math.inf for w in weights.values())):
            raise ValueError("weights have to be more than 0")
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"--reward_backprop.weights {text!r}: {error}; expected a JSON object of names and weights"
        ) from None
    return weights


def _attributor(run: Run) -> Attributor:
    args = run.args.reward_backprop
    duties = {name: (run.folder / role.prompt).read_text(encoding="utf-8") for name, role in run.recipe.roles.items()}
    if args.attributor == "rules":
        if args.prompt:
            raise ConfigurationError("--reward_backprop.prompt is for --reward_backprop.attributor model")
        from marl_plugins.reward_backprop.rules import Rules

        return Rules(duties)
    from marl_plugins import coach
    from marl_plugins.reward_backprop.model import ModelAttributor, read_prompt

    given = args.prompt and "reward_backprop.prompt" not in run.on_command_line
    path = run.folder / args.prompt if given else Path(args.prompt) if args.prompt else PROMPT
    prompt = read_prompt(path)
    before = "marl_plugins.coach" in run.plugins.names[: run.plugins.names.index(__name__)]
    asker = coach.shared_asker() if before else None
    if asker is None:
        what = "--reward_backprop.attributor model asks the coach's model: "
        cure = "" if before else "name --plugin marl_plugins.coach before marl_plugins.reward_backprop, with "
        raise ConfigurationError(f"{what}{cure or 'give '}--coach.model NAME or --coach.policy NAME")
    return ModelAttributor(asker, prompt, duties)


def value_of(trajectory: Trajectory) -> float | None:
    """v, the outcome's value in [-1, 1]; None where there is none.

    Raises:
        ConfigurationError: The grader did not write a part that is weighed.
        ValueError: A part is not in [0, 1].
    """
    if trajectory.outcome is None:
        return None
    if not _state.weights or trajectory.agent_failure:  # agents that failed have an outcome of 0 in every part
        return 2.0 * trajectory.outcome - 1.0
    parts = trajectory.outcome_parts
    missing = sorted(_state.weights.keys() - parts.keys())
    if missing:
        raise ConfigurationError(
            f"--reward_backprop.weights names {', '.join(missing)}, which the grader did not write for task "
            f"{trajectory.task.id}{nearest(missing[0], parts)}"
        )
    total = sum(_state.weights.values())
    checked = {name: checked_score(parts[name], f"outcome's part {name!r}") or 0.0 for name in _state.weights}
    return sum(w * (2.0 * checked[name] - 1.0) for name, w in _state.weights.items()) / total


@hookimpl
async def marl_credit(trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """f_t for every action of every trajectory that has an outcome."""
    from marl_plugins.reward_backprop.backward import Together

    alive = [t for t in trajectories if not t.infrastructure_failure and t.actions]
    async with Together() as group:
        work = [group.create_task(_credit(t)) for t in alive]
    found = {id(t): task.result() for t, task in zip(alive, work, strict=True)}
    lost = [t for t in alive if isinstance(found[id(t)], InfrastructureFailure)]
    _state.metrics = _measured(alive, [gap for gap in found.values() if isinstance(gap, float)], len(lost))
    if lost:  # a model's doing; rules answer always
        from marl_plugins import coach

        coach.leave_out_if_too_many_are_missing([a for t in alive for a in t.actions], [a for t in lost for a in t.actions])
    return trajectories


async def _credit(trajectory: Trajectory) -> float | InfrastructureFailure | None:
    """Write one trajectory's rewards; how far its contributions were from adding up, or why there are none."""
    from marl_plugins.reward_backprop.backward import backward, conserve

    assert _state.attributor is not None
    value = value_of(trajectory)
    trainable = [a for a in trajectory.actions if a.reward is not None]
    if value is None or not trainable:
        for action in trajectory.actions:
            action.reward = None
        return None
    try:
        found = await backward(trajectory, in_words(trajectory), value, _state.attributor)
    except InfrastructureFailure as failure:
        for action in trajectory.actions:
            action.reward, action.unscored = None, action.unscored or failure.kind
        return failure
    raw = {path: attribution.contribution for path, attribution in found.items()}
    contributions = conserve(raw, value)
    for action in trajectory.actions:
        delta, said = contributions[action.path], found[action.path]
        action.contribution = delta
        words = "; ".join(w for w in (said.why, said.passed_on and f"passed on: {said.passed_on}") if w)
        action.explanation = "\n".join(w for w in (action.explanation, f"contribution {delta:+.2f}: {words}") if w)
        if action.reward is not None:
            process = action.reward if trajectory.actions_scored else 0.0
            action.reward = _state.alpha * process + _state.beta * delta
    return abs(value - sum(raw.values()))


def in_words(trajectory: Trajectory) -> str:
    """The outcome as an attributor reads it."""
    if trajectory.agent_failure:
        return f"the team failed: {trajectory.detail or trajectory.agent_failure}"
    parts = ", ".join(f"{name} {value:.3g}" for name, value in trajectory.outcome_parts.items())
    return f"{trajectory.outcome:.3g} of 1" + (f" ({parts})" if parts else "")


def _measured(trajectories: Sequence[Trajectory], gaps: Sequence[float], lost: int) -> dict[str, float]:
    by_role: dict[str, list[float]] = defaultdict(list)
    for action in (a for t in trajectories for a in t.actions):
        if action.contribution is not None:
            by_role[action.role].append(action.contribution)
    metrics = {f"backprop/{role}/contribution": statistics.fmean(found) for role, found in sorted(by_role.items())}
    metrics |= {f"backprop/{role}/spread": statistics.pstdev(found) for role, found in sorted(by_role.items())}
    if trajectories:
        metrics["backprop/missing"] = lost / len(trajectories)
    if gaps:
        metrics["backprop/gap"] = statistics.fmean(gaps)
    return metrics


@hookimpl
def marl_log(step: int, metrics: dict[str, float]) -> None:
    metrics |= _state.metrics
    _state.metrics = {}
