"""Credit by contribution: an action's reward is its share of what the team has earned (Sandbox-RL,
equations 5 and 6).

    R_i = (1 - x) r_i + x U softmax(g / tau)_i        U = sum of the r_i of a trajectory, g_i = r_i
        - mean of r of the others

x is `--cooperation.factor`, tau `--cooperation.tau`. The others of g are the actions of the same
role in other samples of the task; without any, all have the same share whatever tau is.
The shares add up to U: what one gets the others lose. With tau = 0 the best contribution gets all,
with tau = inf all get U / N, which is the paper's team sharing (its algorithm 5, a = 1 - x).

Where U is negative the paper's rule blames the best contributor most.
`--cooperation.negative mirror` (the default) takes softmax(-g / tau) there, so that whoever gave
more never gets less; `paper` is the rule as it is published. The paper calls the rule unbiased;
that needs shares which are the actions' advantages, and holds for no finite tau. What holds, and is
tested, is that nothing is lost or added. Where a plugin gives policies a tau of their own, g is
measured from the trajectory's mean, so that who gave more than the mean still has more than who
gave less. A tau of 0 or inf is the same for all.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from marl_plugins import Problem, Run, ShareTemperatures, Trajectory, at, between, hookimpl


def temperature(word: str) -> float:
    """Parses `--cooperation.tau`: a number from 0 on, or `inf`."""
    value = float(word)
    if not value >= 0:
        raise argparse.ArgumentTypeError(
            f"{word} is out of range: expected a number of at least 0, or inf"
        )
    return value


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "credit by contribution (--plugin marl_plugins.cooperation)"
    ).add_argument
    factor = (
        "share x of the team's reward in an action's: (1 - x) * its own + x * its part of the sum; "
        "0: its own alone"
    )
    add("--cooperation.factor", type=between(0, 1), default=1.0, help=factor)
    tau = (
        "temperature of the softmax over contributions that splits the team's reward: 0 gives all "
        "to the largest contribution, inf gives all the same"
    )
    add("--cooperation.tau", type=temperature, default=1.0, help=tau)
    negative = (
        "a negative team's reward: the worst contribution has the largest share of it, or "
        "the best as in the paper"
    )
    add("--cooperation.negative", choices=["mirror", "paper"], default="mirror", help=negative)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if run.args.cooperation.tau == math.inf or not run.args.cooperation.factor:
        return []
    return run.lost_effect(at(flag="cooperation.tau"), "samples")


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    options, factors = run.args.cooperation, run.state(ShareTemperatures)
    sums: dict[tuple[str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str], int] = defaultdict(int)
    own: dict[tuple[str, str, Trajectory], list[float]] = defaultdict(list)
    rewarded = [(t, [a for a in t.actions if a.reward is not None]) for t in trajectories]
    for trajectory, actions in rewarded:
        for action in actions:
            of = (trajectory.task.id, action.role)
            sums[of] += action.reward or 0.0
            counts[of] += 1
            own[*of, trajectory].append(action.reward or 0.0)
    for trajectory, actions in rewarded:
        rewards, gains = [action.reward or 0.0 for action in actions], []
        for action, reward in zip(actions, rewards, strict=True):
            of = (trajectory.task.id, action.role)
            mine = own[*of, trajectory]
            others = counts[of] - len(mine)
            gains.append(reward - (sums[of] - sum(mine)) / others if others else 0.0)
        if factors and gains and 0 < options.tau < math.inf:
            mean = fmean(gains)
            gains = [
                (gain - mean) / factors.get(a.policy, 1.0)
                for gain, a in zip(gains, actions, strict=True)
            ]
        action_shares = shares(gains, sum(rewards), options.tau, options.negative)
        for action, reward, share in zip(actions, rewards, action_shares, strict=True):
            action.add_reward("cooperation", options.factor * (share - reward))
    return trajectories


def shares(
    gains: Sequence[float],
    utility: float,
    tau: float,
    negative: Literal["mirror", "paper"] = "mirror",
) -> list[float]:
    """Returns the shares of a utility, one for each gain; they add up to it, and ties share
    equally."""
    if not gains:
        return []
    sign = -1.0 if negative == "mirror" and utility < 0 else 1.0
    signed = [sign * gain for gain in gains]
    top = max(signed)
    if math.isinf(tau):
        weights = [1.0] * len(gains)
    elif tau == 0:
        weights = [float(gain == top) for gain in signed]
    else:
        weights = [
            math.exp((gain - top) / tau) for gain in signed
        ]  # at most 1, so that nothing overflows
    total = sum(weights)
    return [utility * weight / total for weight in weights]
