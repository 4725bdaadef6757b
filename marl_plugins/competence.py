"""A competence of each policy, as the baseline of its rewards (Sandbox-RL, equation 7).

    c <- clip(c + eta h - lambda d, 0, c_max)        h = mean of k1 u + k2 U + k3 A over
        the policy's actions in a step

u is an action's reward, U the sum of its trajectory's, A its advantage, and k1, k2, k3 are
`--competence.own`, `.team` and `.advantage` (algorithm 1, line 8; by default 1, 0, 0).
eta is `--competence.eta`, lambda `--competence.decay`, c_max `--competence.most`. With d = c (the
default) c moves towards eta h / lambda, the mean of h where both are equal. With
`--competence.forgets 1`, as the paper has it, d is 1: c runs to 0 or to c_max, whichever side of
lambda eta h lies on. Every action's reward loses the c of its policy as it was before the step.

With `--algo.advantage.estimator gae` the critic learns what competence leaves of the rewards, so
that A = R - V(s, c) with V(s, c) = V(s) + c (equation 8).

A baseline that is the same for all rows of a policy is taken out again where rows of that policy
alone are compared: by groups of a role, by normalisation within a policy, and, with one policy, by
any. The plan says so.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_plugins import (
    Action,
    Problem,
    Run,
    ShareTemperatures,
    Trajectory,
    above,
    at,
    at_least,
    hookimpl,
)


class Competence:
    """The competence of each policy; what a step makes of it counts from the next on, so that it
    may be credited again."""

    def __init__(self) -> None:
        self.now: dict[str, float] = {}
        """By policy, before the step."""
        self.following: dict[str, float] = {}
        """By policy, after it; without its bounds, while advantages are still to come."""
        self.actions: dict[str, list[Action]] = {}
        """The step's rewarded actions by policy, whose advantages are to come."""
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
    number = at_least(0, float)
    of = "of an action in h = own * u + team * U + advantage * A"
    own = f"factor of the reward u {of}"
    group.add_argument("--competence.own", type=number, default=1.0, help=own)
    team = f"factor of its trajectory's sum of rewards U {of}"
    group.add_argument("--competence.team", type=number, default=0.0, help=team)
    advantage = f"factor of the advantage A {of}"
    group.add_argument("--competence.advantage", type=number, default=0.0, help=advantage)
    forgets = "what decay multiplies: c, the competence itself, or the constant 1 as in the paper"
    group.add_argument("--competence.forgets", choices=["c", "1"], default="c", help=forgets)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    return run.lost_effect(at(plugin="marl_plugins.competence"), "baseline")


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    competence, options = run.state(Competence), run.args.competence
    competence.begin(trajectories[0].step if trajectories else competence.step)
    told: dict[str, list[float]] = defaultdict(list)
    competence.actions = defaultdict(list)
    for trajectory in trajectories:
        actions = [action for action in trajectory.actions if action.reward is not None]
        team = options.team * sum(action.reward or 0.0 for action in actions)
        for action in actions:
            if not trajectory.origin:  # what others have made was chosen
                told[action.policy].append(options.own * (action.reward or 0.0) + team)
            competence.actions[action.policy].append(action)
            action.add_reward("competence", -competence.now.get(action.policy, 0.0))
    for policy, values in told.items():
        c = competence.now.get(policy, 0.0)
        forgotten = c if options.forgets == "c" else 1.0
        change = eta_of(run) * fmean(sorted(values)) - options.decay * forgotten
        competence.following[policy] = c + change
    if not options.advantage:
        bound(competence, options.most)
    return trajectories


def eta_of(run: Run) -> float:
    """Returns the rate at which competence grows: as a plugin that shares the rewards has it, or
    the flag's."""
    options, competition = run.args.competence, run.state(ShareTemperatures).competition
    return float(options.eta if competition is None else competition * options.decay)


def bound(competence: Competence, most: float) -> None:
    """Bounds what a step has made of the competences, and lets go of its actions."""
    for policy, c in competence.following.items():
        competence.following[policy] = min(max(c, 0.0), most)
    competence.actions = {}


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    competence, options = run.state(Competence), run.args.competence
    for policy, actions in competence.actions.items():
        advantages = sorted(a.advantage for a in actions if a.advantage is not None)
        mean = fmean(advantages) if advantages else 0.0
        competence.following[policy] += eta_of(run) * options.advantage * mean
    bound(competence, options.most)
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
