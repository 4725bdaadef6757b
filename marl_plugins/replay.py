"""Prioritised replay: groups of trajectories of earlier steps are trained on again (arXiv
1511.05952; Sandbox-RL, algorithm 6).

    p_i = priority_i / sum        priority_i = a mean reward + b mean |advantage| of the group's
                                  actions, at least a hundredth of the mean priority
    w_i = (N p_i)^-beta           not divided by the largest: that of a group which is hardly ever
                                  drawn would make all others vanish

With `--replay.sharpness` c above 0 it is Sandbox-RL's equation 16 instead,

    priority_i = exp(c mean over the group's trajectories of sum over actions (r + d g))

relative to the largest, where d is `--replay.gradient`, and g, the part of |grad log pi|^2 that is
known without a model, is the sum over an action's tokens of (1 - p)^2, p being the probability with
which a token was sampled: the derivative by its own logit.

A step draws `--replay.groups` of the N groups of the last `--replay.staleness` steps, with
replacement, by p. The workflow says them again with the ids and log-probs that were sampled
(`Exchange.again`), graders and coach score them again, and their advantages are multiplied by w and
by how often they were drawn: with beta 1 that is, in expectation, `--replay.groups` times the plain
mean over the N groups. It is off-policy, which `--algo.advantage.is_correction_level token`
corrects for each token.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from statistics import fmean

from marl_plugins import (
    Exchange,
    Filter,
    Problem,
    RefusedRecord,
    Row,
    Run,
    RunReader,
    Trajectory,
    all_or_none,
    at,
    at_least,
    between,
    derive_seed,
    hookimpl,
)

LEAST_OF_MEAN = 0.01
"""The priority of a group, at least, as a part of the mean one."""


class Buffer:
    """The groups of earlier steps by step and task, the last step, and the weights of what is
    replayed in this one."""

    def __init__(self) -> None:
        self.groups, self.step, self.weights = (
            dict[tuple[int, str], list[Trajectory]](),
            0,
            dict[Trajectory, float](),
        )


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("prioritised replay (--plugin marl_plugins.replay)")
    group.add_argument(
        "--replay.groups",
        type=at_least(0),
        default=1,
        help="number of groups (all samples of a task) that a step draws from earlier steps",
    )
    group.add_argument(
        "--replay.staleness",
        type=at_least(1),
        default=4,
        help="age in steps up to which a group is kept",
    )
    group.add_argument(
        "--replay.reward",
        type=at_least(0, float),
        default=0.0,
        help="factor of the mean reward in a group's priority, "
        "replay.reward * mean reward + replay.advantage * mean |advantage|",
    )
    group.add_argument(
        "--replay.advantage",
        type=at_least(0, float),
        default=1.0,
        help="factor of the mean |advantage| in a group's priority",
    )
    group.add_argument(
        "--replay.sharpness",
        type=at_least(0, float),
        default=0.0,
        help="above 0: priorities are exp(sharpness * sum of reward + gradient * g over a "
        "trajectory's actions), and .reward and .advantage are not used",
    )
    group.add_argument(
        "--replay.gradient",
        type=at_least(0, float),
        default=1.0,
        help="factor of g, an action's sum of (1 - probability of a sampled token) ** 2, in the "
        "priorities of --replay.sharpness",
    )
    group.add_argument(
        "--replay.beta",
        type=between(0, 1),
        default=1.0,
        help="exponent of the importance weights (N * p) ** -beta of N groups drawn with "
        "probability p; 1: the bias of the draw is undone, 0: it stays",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    flag, got = (
        "algo.advantage.is_correction_level",
        "what is replayed is trained on as if today's weights had sampled it",
    )
    problem = Problem(
        "replay.uncorrected", at(flag=flag), got, fix="set it to token", severity="warning"
    )
    return (
        [problem] if getattr(run.args.algo.advantage, "is_correction_level", "off") == "off" else []
    )


def priority(group: Sequence[Trajectory], reward: float, advantage: float) -> float:
    """Returns the priority of a group; rounded, because records do not keep the last bit of a
    mean."""
    rewarded = [
        (a.reward, a.advantage or 0.0) for t in group for a in t.actions if a.reward is not None
    ]
    sizes = [reward * value + advantage * abs(size) for value, size in rewarded]
    return max(1e-6, round(fmean(sizes), 9)) if sizes else 1e-6


def exponential_priorities(
    groups: Sequence[Sequence[Trajectory]], sharpness: float, gradient: float
) -> list[float]:
    """Returns the priorities of groups by equation 16, the largest of which is 1."""
    sums = [
        fmean(
            sum(
                action.reward
                + gradient * sum((1 - math.exp(x)) ** 2 for x in action.generation.logprobs)
                for action in trajectory.actions
                if action.reward is not None
            )
            for trajectory in group
        )
        for group in groups
    ]
    return [max(1e-6, round(math.exp(sharpness * (each - max(sums))), 9)) for each in sums]


def chances_and_weights(
    priorities: Sequence[float], beta: float
) -> tuple[list[float], list[float]]:
    """Returns the probability of each of some groups, and its weight, of which none is above
    101."""
    least = LEAST_OF_MEAN * fmean(priorities)
    bounded = [max(least, each) for each in priorities]
    chances = [each / sum(bounded) for each in bounded]
    return chances, [(len(chances) * chance) ** -beta for chance in chances]


@hookimpl
async def marl_exchange(
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Sequence[Trajectory]:
    buffer, o, step = run.state(Buffer), run.args.replay, exchange.step
    resumed = buffer.step != step - 1
    earlier = (
        RunReader(run.output).trajectories(Filter((max(step - o.staleness, 1), step - 1)))
        if resumed
        else ()
    )
    for t in (
        t
        for t in [*earlier, *trajectories]
        if t.is_original and not t.infrastructure_failure and t.actions
    ):
        buffer.groups.setdefault((t.step, t.task.id), []).append(t)
    recent = [(key, group) for key, group in buffer.groups.items() if step - o.staleness <= key[0]]
    buffer.groups = {
        key: group
        for key, group in recent
        if any(a.left_out is None for t in group for a in t.actions)
    }
    buffer.step, buffer.weights, keys = step, {}, [key for key in buffer.groups if key[0] < step]
    if o.sharpness:
        groups = [buffer.groups[key] for key in keys]
        priorities = exponential_priorities(groups, o.sharpness, o.gradient)
    else:
        priorities = [priority(buffer.groups[key], o.reward, o.advantage) for key in keys]
    chances, weights = chances_and_weights(priorities or [1.0], o.beta)
    draw = random.Random(derive_seed(run.args.train.seed, "replay", step))
    for number, times in sorted(
        Counter(draw.choices(range(len(keys)), chances, k=o.groups) if keys else ()).items()
    ):
        repeats = [
            exchange.again(t, f"step {keys[number][0]}") for t in buffer.groups[keys[number]]
        ]
        with suppress(RefusedRecord):  # the workflow depends on more than on words
            buffer.weights |= dict.fromkeys(await all_or_none(repeats), times * weights[number])
    return [*trajectories, *buffer.weights]


@hookimpl
def marl_select(rows: Sequence[Row], run: Run) -> Sequence[Row]:
    for row in rows:
        row.weight *= run.state(Buffer).weights.get(row.trajectory, 1.0)
    return rows


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    replayed, groups = len(run.state(Buffer).weights), len(run.state(Buffer).groups)
    metrics |= {"replay/trajectories": float(replayed), "replay/groups": float(groups)}
