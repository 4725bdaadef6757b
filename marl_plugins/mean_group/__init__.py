"""One control for a group of policies, of which each has its share by how it does (Sandbox-RL,
mean-group policy).

    a_i = a clip(v_i / mean of v over the group, low, high)        v_i = slow mean of the rewards of
        policy i

a is `--mean_group.control`, or that times what the group's own policy says, which learns from its
members' rewards (`--mean_group.policy learned`, `marl_plugins.mean_group.policy`).

From then on a_i multiplies what `--mean_group.scales` names: the
rewards of policy i, the limit of tokens of its answers in rollouts that begin afterwards (never
above the recipe's), or the tau of its actions in `marl_plugins.cooperation`. A group is a
population, or named by `--mean_group.groups a+b,c+d`, and costs one pass over its members. Where
the mean is not above 0, a ratio says nothing, and everybody has a. Normalisation within a policy
takes a factor of rewards out again, of which the plan warns. The rewards are those that the plugins
before this one have left.
"""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import fmean
from typing import Any

from marl_plugins import (
    AnswerLimits,
    Problem,
    Run,
    ShareTemperatures,
    Trajectory,
    above,
    at_least,
    between,
    derive_seed,
    hookimpl,
)
from marl_plugins.mean_group.checks import SCALES, check_groups, check_limits, check_tau, groups_of
from marl_plugins.mean_group.policy import GroupPolicy


class MeanRewards(dict[str, float]):
    """The slow mean of each policy's rewards; beside it the mean of the step that was credited
    last, and the factor of rewards."""

    def __init__(self) -> None:
        self.latest, self.factors = dict[str, float](), dict[str, float]()
        self.said: dict[str, int] = {}
        """Tokens of each policy in that step."""
        self.step = 0


class GroupPolicies(dict[tuple[str, ...], GroupPolicy]):
    """The policy of each group, where these are learned."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "one control for a group (--plugin marl_plugins.mean_group)"
    ).add_argument
    add(
        "--mean_group.groups",
        default=None,
        metavar="A+B,C+D",
        help="policies that share one control; default: each population is a group",
    )
    add(
        "--mean_group.scales",
        choices=["reward", "max_tokens", "tau"],
        default="reward",
        help="what a member's control multiplies: its rewards, the token limit of its answers, or "
        "its temperature tau in marl_plugins.cooperation",
    )
    add(
        "--mean_group.control",
        type=above(0),
        default=1.0,
        help="control a of a group; member i has a * clip(v_i / mean of v, low, high), where v_i "
        "is the slow mean of its rewards",
    )
    add(
        "--mean_group.low",
        type=between(0, 1),
        default=0.5,
        help="lower bound of v_i / mean of v (see --mean_group.control)",
    )
    add(
        "--mean_group.high",
        type=at_least(1, float),
        default=2.0,
        help="upper bound of v_i / mean of v",
    )
    add(
        "--mean_group.rate",
        type=between(0, 1),
        default=0.1,
        help="weight of the newest step in the slow mean v_i",
    )
    policy = (
        "fixed: the control of a group stays; learned: a policy of four weights draws it after "
        "every step, by the budget left, the mean of v and the steps to go, and learns from the "
        "members' rewards"
    )
    add("--mean_group.policy", choices=["fixed", "learned"], default="fixed", help=policy)
    budget = "tokens that a group may say in a run with a learned policy, which sees what is left"
    add(
        "--mean_group.budget",
        type=at_least(0),
        default=0,
        help=f"{budget}; then its control is least; 0: no bound",
    )
    add(
        "--mean_group.stage",
        type=at_least(1),
        default=50,
        help="steps of a stage, of which a learned policy sees how many are to go",
    )
    add(
        "--mean_group.learning_rate",
        type=above(0),
        default=0.1,
        help="learning rate of a learned policy",
    )
    add(
        "--mean_group.discount",
        type=between(0, 1),
        default=0.9,
        help="discount of later steps' rewards in what a learned policy maximises",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    more = {
        "reward": lambda run: run.lost_effect(SCALES, "factor"),
        "max_tokens": check_limits,
        "tau": check_tau,
    }[run.args.mean_group.scales]
    return [*check_groups(run), *more(run)]


def controls(values: Sequence[float], control: float, low: float, high: float) -> list[float]:
    """Returns each member's control: its value over the mean, within bounds, times the group's."""
    mean = fmean(values) if values else 0.0
    return [control * (min(max(value / mean, low), high) if mean > 0 else 1.0) for value in values]


def apply_controls(run: Run) -> None:
    """Sets what the control multiplies, for every policy that has been rewarded."""
    o, means = run.args.mean_group, run.state(MeanRewards)
    scaled = {
        "reward": means.factors,
        "max_tokens": run.state(AnswerLimits),
        "tau": run.state(ShareTemperatures),
    }[o.scales]
    for group in groups_of(run):
        known, control = [name for name in group if name in means], o.control
        if group in run.state(GroupPolicies):
            control *= math.exp(run.state(GroupPolicies)[group].log_control)
        scaled |= zip(
            known, controls([means[name] for name in known], control, o.low, o.high), strict=True
        )


def move_policies(run: Run) -> None:
    """Lets every group's policy learn from the step, and decide for the next one."""
    o, means = run.args.mean_group, run.state(MeanRewards)
    for group in groups_of(run):
        earned = [means.latest[name] for name in group if name in means.latest]
        if not earned:
            continue
        policy = run.state(GroupPolicies).setdefault(group, GroupPolicy())
        policy.used += sum(means.said.get(name, 0) for name in group)
        left = max(0.0, 1 - policy.used / o.budget) if o.budget else 1.0
        mean = fmean(means[name] for name in group if name in means)
        observed = [1.0, left, mean, 1 - means.step % o.stage / o.stage]
        policy.learn(fmean(earned), observed, o.learning_rate, o.discount)
        seed = derive_seed(run.args.train.seed, "mean_group", *group, means.step)
        policy.decide(observed, random.Random(seed))


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    means, rewards = run.state(MeanRewards), defaultdict[str, list[float]](list)
    for trajectory in trajectories:
        for action in (a for a in trajectory.actions if a.reward is not None):
            if not trajectory.origin:  # what others have made was chosen
                rewards[action.policy].append(action.reward or 0.0)
            if action.policy in means.factors:
                action.add_reward(
                    "mean_group", (means.factors[action.policy] - 1.0) * (action.reward or 0.0)
                )
    means.latest = {policy: fmean(sorted(values)) for policy, values in rewards.items()}
    means.said, means.step = defaultdict(int), max((t.step for t in trajectories), default=0)
    own = (a for t in trajectories for a in t.actions if not t.origin and not a.replayed)
    for action in own:
        means.said[action.policy] += len(action.generation.ids)
    return trajectories


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    means, rate = run.state(MeanRewards), run.args.mean_group.rate
    means |= {
        policy: means.get(policy, mean) * (1 - rate) + rate * mean
        for policy, mean in means.latest.items()
    }
    if run.args.mean_group.policy == "learned":
        move_policies(run)
    means.latest = {}
    apply_controls(run)
    metrics |= {f"mean_group/{policy}": value for policy, value in sorted(means.items())}
    metrics |= {
        f"mean_group/control/{group[0]}": math.exp(policy.log_control)
        for group, policy in run.state(GroupPolicies).items()
    }


@hookimpl
def marl_state(run: Run) -> dict[str, Any]:
    policies = run.state(GroupPolicies).items()
    learned = {f"group {'+'.join(group)}": asdict(policy) for group, policy in policies}
    return {**run.state(MeanRewards), **learned}


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Any]) -> None:
    for name, value in state.items():
        if isinstance(value, dict):
            group = tuple(name.removeprefix("group ").split("+"))
            run.state(GroupPolicies)[group] = GroupPolicy(**value)
        else:
            run.state(MeanRewards)[name] = value
    apply_controls(run)
