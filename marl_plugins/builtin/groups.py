"""Estimators that compare the samples of a task with each other. Built in.

They are upstream's `rloo`, `reinforce_baseline`, `dr_grpo` and `group_norm`
(experience_maker.py:268-275), to which they are equal for one role and one action per trajectory.
The baseline is taken from the action's *return*, summed over
`--groups.scope` before, never from rewards that are summed afterwards: normalising rewards turn by
turn takes from the decision to continue what continuing is worth, and so teaches agents when to
stop (verl issue 7244; tests/test_bias.py).

A baseline says something only of returns that had the same to begin with. So the members of a group
must have been shown the very same context, which is checked, at configuration as far as it can be
known and at every step; `--groups.by task+role+turn` gives that up, knowingly: members then share
the task, the role and the turn, and no more.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.estimators import (
    Estimator,
    GroupBy,
    Reach,
    WhitenedAdvantages,
    add_scope_flag,
    check_estimator,
    group_key,
    idle_scope_flags,
    returns_of,
    scope_flags,
)
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.problems import Problem
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

    from marl_plugins.core.run import Run


@dataclass(frozen=True)
class GroupMean(Estimator):
    """Dr. GRPO: return minus the group's mean (arXiv 2503.20783; upstream's `dr_grpo`).

        A_t = R - mean over the group of R - KL penalties from t on

    The mean holds the action's own return: in a group of n the expected gradient is (n - 1)/n of
    the true one. Where agents decide how many turns there are n differs between turns, and late
    turns weigh less. Alone in its group: advantage 0.
    """

    scope: Reach = "group"
    group_by: GroupBy | None = "task"

    def shape(self, rows: Sequence[Row], rewards: Tensor) -> Tensor:
        assert self.group_by is not None
        groups = [group_key(row, self.group_by) for row in rows]
        if self.group_by != "task+role+turn":
            same_context(rows, groups, self.group_by)
        # In float64 the mean of equal rewards is that reward: no noise is left over that could be
        # divided by.
        return self.centre(rows, groups, rewards.double()).to(rewards.dtype)

    def metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        """Returns the number of groups, and of rows in whose group no other trajectory has any."""
        assert self.group_by is not None
        groups = [group_key(row, self.group_by) for row in rows]
        samples = defaultdict(set)
        for row, group in zip(rows, groups, strict=True):
            samples[group].add(row.trajectory.sample)
        alone = sum(len(samples[group]) == 1 for group in groups)
        return {"groups/count": float(len(samples)), "groups/alone": float(alone)}

    def centre(self, rows: Sequence[Row], groups: Sequence[str], returns: Tensor) -> Tensor:
        """Returns (rows,), float64, to what is left of them, (rows,)."""
        return returns - mean_by(groups, returns)


@dataclass(frozen=True)
class LeaveOneOut(GroupMean):
    """RLOO: return minus the mean of the group's other samples (arXiv 2402.14740; upstream's
    `rloo`).

        A_t = R - mean over the other trajectories' rows of the group of R - KL penalties from t on

    The baseline is a function of other trajectories alone, so the expected gradient is that of the
    plain return, exactly, whatever makes a group. That is why a row whose group has no other
    trajectory (nobody else reached its turn) is compared
    with those of its task: advantage 0 would weigh it by the chance that somebody had. Only where
    no other trajectory of the task is left is the advantage 0. Fails with few samples: the baseline
    is as noisy as they are few.
    """

    def centre(self, rows: Sequence[Row], groups: Sequence[str], returns: Tensor) -> Tensor:
        tasks, samples = (
            [group_key(row, "task") for row in rows],
            [row.trajectory.sample for row in rows],
        )
        wider = mean_of_others(tasks, samples, returns, otherwise=returns)
        return returns - mean_of_others(groups, samples, returns, otherwise=wider)


@dataclass(frozen=True)
class GroupNorm(GroupMean):
    """GRPO: return minus the group's mean, over its standard deviation (arXiv 2402.03300;
    upstream's `group_norm`).

        A_t = (R - mean) / (sd + 1e-9) - KL penalties from t on        sd with n - 1; 0 where all
            returns are equal

    Grouped by task+role(+turn) it is Dr. MAS's per-agent normalisation (arXiv 2602.08847) and
    AT-GRPO's (2510.11062). Weighs tasks on which the samples hardly differ as much as those on
    which they do; one of them may be a matter of luck. The deviation depends on which returns are
    in the group, and so turns the mean gradient (docs/credit.md).
    """

    @property
    def divided(self) -> tuple[str, ...] | None:
        return self.compared

    def centre(self, rows: Sequence[Row], groups: Sequence[str], returns: Tensor) -> Tensor:
        import torch

        centred = super().centre(rows, groups, returns)
        count = sum_by(groups, returns.new_ones(len(rows)))
        deviation = (sum_by(groups, centred.square()) / (count - 1).clamp(min=1)).sqrt()
        return torch.where(deviation > 0, centred / (deviation + 1e-9), 0.0)


@dataclass(frozen=True)
class ReinforceBaseline(GroupMean, WhitenedAdvantages):
    """REINFORCE++-baseline: return minus the group's mean, then whitened over the batch (arXiv
    2501.03262; upstream's `reinforce_baseline`).

        A_t = (G_t - mean over all sampled tokens) / sd over all sampled tokens, G_t = R - group's
        mean - KL penalties from t on

    Its failure modes are those of the group's mean; a batch in which only few groups differ makes
    those few large.
    """

    scope: Reach = "batch"
    affine: bool = True

    @property
    def divided(self) -> tuple[str, ...] | None:
        return () if self.divide else None


ESTIMATORS: dict[str, type[GroupMean]] = {
    "rloo": LeaveOneOut,
    "reinforce_baseline": ReinforceBaseline,
    "dr_grpo": GroupMean,
    "group_norm": GroupNorm,
}


def same_context(rows: Sequence[Row], groups: Sequence[str], group_by: GroupBy) -> None:
    """Checks that every group's rows were shown the very same ids.

    Raises:
        RunEnded: A group's were not; names it.
    """
    first: dict[str, Row] = {}
    for row, group in zip(rows, groups, strict=True):
        other = first.setdefault(group, row)
        if other.action.context_ids != row.action.context_ids:
            roles = sorted({r.action.role for r, g in zip(rows, groups, strict=True) if g == group})
            raise RunEnded(
                f"--groups.by {group_by}: the rows of group {group!r} (role {', '.join(roles)}) "
                "were shown different contexts, "
                f"the first two {other.name} and {row.name}, so one's return is no measure for the "
                "other's. Use --groups.by "
                "task+role+turn, which compares them all the same, or --algo.advantage.estimator "
                "reinforce"
            )


def _numbers(keys: Sequence[Hashable]) -> Tensor:
    """A number from 0 for each different key, (rows,)."""
    import torch

    seen: dict[Hashable, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys], dtype=torch.long)


def sum_by(keys: Sequence[Hashable], values: Tensor) -> Tensor:
    """Returns, for each row, the sum of the values of all rows with its key, (rows,)."""
    numbers = _numbers(keys)
    return values.new_zeros(len(keys)).index_add(0, numbers, values)[numbers]


def mean_by(keys: Sequence[Hashable], values: Tensor) -> Tensor:
    """Returns, for each row, the mean of the values (rows,) over all rows with its key."""
    return sum_by(keys, values) / sum_by(keys, values.new_ones(len(values)))


def mean_of_others(
    keys: Sequence[Hashable], samples: Sequence[int], values: Tensor, otherwise: Tensor
) -> Tensor:
    """Returns, for each row, the mean of the values (rows,) over the rows with its key of other
    samples; `otherwise` without any."""
    import torch

    own = list(zip(keys, samples, strict=True))
    ones = values.new_ones(len(values))
    count = sum_by(keys, ones) - sum_by(own, ones)
    return torch.where(
        count > 0, (sum_by(keys, values) - sum_by(own, values)) / count.clamp(min=1), otherwise
    )


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("group baselines (marl_plugins.builtin.groups)")
    group.add_argument(
        "--groups.by",
        choices=["task", "task+role", "task+role+turn"],
        default="task",
        help="which rows are compared: a task's (for one role with one turn), a role's (which sees "
        "the same in all samples of a task), or those of a role's turn",
    )
    add_scope_flag(group, "groups")


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if run.estimator not in ESTIMATORS:
        return [
            p
            for flag in ("groups.by", *scope_flags("groups"))
            for p in run.unused_flag(flag, ESTIMATORS)
        ]
    # too few samples is upstream's own check
    problems = check_estimator(_made(run), 2, len(run.trained_roles), run.turns)
    idle = idle_scope_flags("groups", run.args.groups, run.given)
    return [*(problem.within(flag="groups.by") for problem in problems), *idle]


def _made(run: Run) -> GroupMean:
    advantage, options = run.args.algo.advantage, run.args.groups
    made = ESTIMATORS[advantage.estimator](**returns_of(options), group_by=options.by)
    return (
        replace(made, divide=not advantage.no_std_norm)
        if isinstance(made, ReinforceBaseline)
        else made
    )


@hookimpl
def marl_estimator(run: Run) -> Estimator | None:
    return _made(run) if run.args.algo.advantage.estimator in ESTIMATORS else None
