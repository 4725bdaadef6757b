"""One control for a group of policies, of which each has its share by how it does (Sandbox-RL, mean-group policy).

    a_i = a clip(v_i / mean of v over the group, low, high)        v_i = slow mean of the rewards of policy i

Every reward of policy i is multiplied by a_i: who does better than the group is trained more strongly. a is
`--mean_group.control`. A group is a population, or named by `--mean_group.groups a+b,c+d`; it costs one pass over its members.
Where the mean is not above 0 a ratio says nothing, and everybody has a. Normalisation within a policy takes a factor out again.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import fmean

from marl_plugins import hookimpl
from marl_plugins.core.options import above, at_least, between
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.run import Run


class MeanRewards:
    """The slow mean of each policy's rewards, before the step that was credited last and after it."""

    def __init__(self) -> None:
        self.before, self.now, self.step = dict[str, float](), dict[str, float](), -1


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("one control for a group (--plugin marl_plugins.mean_group)")
    group.add_argument("--mean_group.groups", default=None, metavar="A+B,C+D", help="policies; default: each population")
    group.add_argument("--mean_group.control", type=above(0), default=1.0, help="factor of a group's rewards")
    group.add_argument("--mean_group.low", type=between(0, 1), default=0.5, help="smallest share of it for a member")
    group.add_argument("--mean_group.high", type=at_least(1, float), default=2.0, help="largest share")
    group.add_argument("--mean_group.rate", type=between(0, 1), default=0.1, help="weight of a step in the slow mean")


def groups_of(run: Run) -> list[tuple[str, ...]]:
    """Returns the policies of each group."""
    if named := run.args.mean_group.groups:
        return [tuple(group.split("+")) for group in named.split(",")]
    return list(dict.fromkeys(run.recipe.populations.values()))


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    where, found, names = at(flag="mean_group.groups"), [], [p.name for p in run.policies]
    grouped = [name for group in groups_of(run) for name in group]
    for name in dict.fromkeys(grouped):
        if name not in names:
            found.append(Problem("mean_group.no_policy", where, f"there is no policy {name!r}", fix=meant(name, names)))
        elif grouped.count(name) > 1:
            found.append(Problem("mean_group.twice", where, f"policy {name!r} is in two groups", fix="leave it in one"))
    if not any(len(group) > 1 for group in groups_of(run)):
        got, fix = "no group has two policies", "name the groups, as in a+b,c+d"
        found.append(Problem("mean_group.alone", where, got, fix=fix, severity="warning"))
    return found


def controls(values: Sequence[float], control: float, low: float, high: float) -> list[float]:
    """Returns each member's control: its value over the mean, within bounds, times the group's."""
    mean = fmean(values) if values else 0.0
    return [control * (min(max(value / mean, low), high) if mean > 0 else 1.0) for value in values]


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    means, o = run.state(MeanRewards), run.args.mean_group
    if trajectories and trajectories[0].step != means.step:
        means.before, means.step = dict(means.now), trajectories[0].step
    factors: dict[str, float] = {}
    for group in groups_of(run):
        known = [name for name in group if name in means.before]
        factors |= zip(known, controls([means.before[name] for name in known], o.control, o.low, o.high), strict=True)
    rewards: dict[str, list[float]] = defaultdict(list)
    for action in (a for t in trajectories for a in t.actions if a.reward is not None):
        rewards[action.policy].append(action.reward or 0.0)
        action.add_reward("mean_group", (factors.get(action.policy, 1.0) - 1.0) * (action.reward or 0.0))
    for policy, mean in [(name, fmean(sorted(found))) for name, found in rewards.items()]:
        means.now[policy] = means.before.get(policy, mean) * (1 - o.rate) + o.rate * mean
    return trajectories


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    metrics |= {f"mean_group/{policy}": value for policy, value in sorted(run.state(MeanRewards).now.items())}


@hookimpl
def marl_state(run: Run) -> dict[str, float]:
    return run.state(MeanRewards).now


@hookimpl
def marl_restore(run: Run, state: Mapping[str, float]) -> None:
    means = run.state(MeanRewards)
    means.before, means.now, means.step = {}, dict(state), -1
