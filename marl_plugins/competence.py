"""A competence of each policy, as the baseline of its rewards (Sandbox-RL, equation 7).

    c <- clip(c + eta h - lambda d, 0, c_max)        h = mean reward of the policy's actions in a
        step

eta is `--competence.eta`, lambda `--competence.decay`, c_max `--competence.most`. With d = c (the
default) c moves towards eta h / lambda, the mean of h where both are equal. With
`--competence.forgets 1`, as the paper has it, d is 1: c runs to 0 or to c_max, whichever side of
lambda eta h lies on. Every action's reward loses the c of its policy as it was before the step.

A baseline that is the same for all rows of a policy is taken out again where rows of that policy
alone are compared: by groups of a role, by normalisation within a policy, and, with one policy, by
any. The plan says so.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_plugins import Problem, Run, Trajectory, above, at, hookimpl


class Competence:
    """The competence of each policy; what a step makes of it counts from the next on, so that it
    may be credited again."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        """By policy, before the step."""
        self.following: dict[str, float] = {}
        """By policy, after it."""
        self.step = -1
        """The step that it was last asked for."""

    def begin(self, step: int) -> None:
        """Begins a step, unless it is the one that was credited last."""
        if step != self.step:
            self.now.update(self.following)
            self.step, self.following = step, {}


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "a competence of each policy (--plugin marl_plugins.competence)"
    )
    group.add_argument(
        "--competence.eta",
        type=above(0),
        default=0.1,
        help="factor of a step's mean reward h in the update of a policy's competence: "
        "c = c + eta * h - decay * c",
    )
    group.add_argument(
        "--competence.decay",
        type=above(0),
        default=0.1,
        help="factor of what a step takes off the competence (see --competence.eta)",
    )
    group.add_argument(
        "--competence.most", type=above(0), default=1.0, help="upper bound of competence"
    )
    forgets = "what decay multiplies: c, the competence itself, or the constant 1 as in the paper"
    group.add_argument("--competence.forgets", choices=["c", "1"], default="c", help=forgets)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    options, problems = run.args.competence, []
    if options.eta > options.decay:
        got = (
            f"{options.eta:g} is above --competence.decay {options.decay:g}: with rewards near 1 "
            "competence stays at its largest"
        )
        problems.append(
            Problem("competence.runs_away", at(flag="competence.eta"), got, severity="warning")
        )
    return problems + run.lost_effect(at(plugin="marl_plugins.competence"), "baseline")


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    competence, options = run.state(Competence), run.args.competence
    competence.begin(trajectories[0].step if trajectories else competence.step)
    rewards: dict[str, list[float]] = defaultdict(list)
    for action in (a for t in trajectories for a in t.actions if a.reward is not None):
        rewards[action.policy].append(action.reward or 0.0)
        action.add_reward("competence", -competence.now.get(action.policy, 0.0))
    for policy, values in rewards.items():
        c = competence.now.get(policy, 0.0)
        forgotten = c if options.forgets == "c" else 1.0
        change = options.eta * fmean(sorted(values)) - options.decay * forgotten
        competence.following[policy] = min(max(c + change, 0.0), options.most)
    return trajectories


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    competence = run.state(Competence)
    metrics |= {
        f"competence/{policy}": c
        for policy, c in sorted((competence.now | competence.following).items())
    }


@hookimpl
def marl_state(run: Run) -> dict[str, float]:
    competence = run.state(Competence)
    return competence.now | competence.following


@hookimpl
def marl_restore(run: Run, state: Mapping[str, float]) -> None:
    competence = run.state(Competence)
    competence.now, competence.following, competence.step = dict(state), {}, -1
