"""RAE, role-conditioned advantage estimation: reward minus the running mean reward of the action's
role (arXiv 2506.24119).

    A = R - b,  then b <- decay b + (1 - decay) (mean R of the role in this step);  kept in
    checkpoints

The first b is the role's mean in its first step: the paper's 0 is the middle of its rewards, and
not of scores in [0, 1]. For games in which the positions are not worth the same: what a position
wins on average is no merit of its player.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_plugins import Estimator, Run, Trajectory, between, hookimpl


class Baselines(dict[str, float]):
    """The baselines, by role."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("role-conditioned baselines (--plugin marl_plugins.rae)")
    group.add_argument(
        "--rae.decay",
        type=between(0, 1),
        default=0.95,
        help="weight of the past in a role's baseline b = decay * b + (1 - decay) * mean reward of "
        "the step",
    )


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    baselines, decay, by_role = (
        run.state(Baselines),
        run.args.rae.decay,
        defaultdict[str, list[float]](list),
    )
    rewarded = [(t, a) for t in trajectories for a in t.actions if a.reward is not None]
    for t, action in rewarded:
        if not t.origin:  # what others have made was chosen
            by_role[action.role].append(action.reward or 0.0)
    means = {role: fmean(rewards) for role, rewards in by_role.items()}
    for _, action in rewarded:
        baseline = baselines.get(action.role, means.get(action.role, 0.0))
        action.add_reward("baseline", -baseline)
    for role, mean in means.items():
        baselines[role] = decay * baselines.get(role, mean) + (1 - decay) * mean
    return trajectories


@hookimpl
def marl_estimator(run: Run) -> Estimator:
    return Estimator()  # the advantage is the reward: what is left of it has a mean of 0 already


@hookimpl
def marl_state(run: Run) -> dict[str, float]:
    return dict(run.state(Baselines))


@hookimpl
def marl_restore(run: Run, state: Mapping[str, float]) -> None:
    baselines = run.state(Baselines)
    baselines.clear()
    baselines.update(state)
