"""REINFORCE++ with global normalisation (`--algo.advantage.estimator reinforce`, the default), and
FlashREINFORCE. Built in."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING, Literal

from marl_plugins import hookimpl
from marl_plugins.core.estimators import (
    Batch,
    Estimator,
    Reach,
    WhitenedAdvantages,
    add_scope_flag,
    idle_scope_flags,
    returns_of,
    scope_flags,
)
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    from torch import Tensor

    from marl_plugins.core.run import Run


@dataclass(frozen=True)
class ReinforcePlusPlus(WhitenedAdvantages):
    """REINFORCE++ (arXiv 2501.03262; MAPPA sections 2.3 and E.2; upstream's `reinforce`).

        G_t = sum over the sampled tokens s >= t of the row of gamma^(s-t) r_s
        A_t = (G_t - mean) / sqrt(max(variance, 1e-8))

    r_s is minus the KL penalty at every token, plus the action's return at its last one; mean and
    variance are over the sampled tokens of all rows of all policies, roles and ranks of the step.
    With `normalise` policy it is Dr. MAS's remedy for roles of different returns (arXiv 2602.08847)
    without groups; with role, the same per role.

    Fails where a role's returns lie far from the others': its advantages get one sign, hence
    `--reinforce_pp.normalise`. The mean holds the row's own return, so the expected gradient is off
    by an order of one over the number of rows, and, where agents decide how many actions there are,
    in direction too. Division by the standard deviation is no plain factor: it depends on which
    returns are in the batch, and so turns the mean (docs/credit.md).

    Args:
        normalise: Over which rows mean and variance are taken.
    """

    normalise: Literal["global", "policy", "role"] = "global"

    @property
    def compared(self) -> tuple[str, ...]:
        return () if self.normalise == "global" else (self.normalise,)

    def normalisation_group(self, row: Row) -> str:
        return {"global": "", "policy": row.action.policy, "role": row.action.role}[self.normalise]


@dataclass(frozen=True)
class FlashReinforce(Estimator):
    """Reward minus the mean reward of all rows of the step, and no whitening (upstream's
    `flash_reinforce`).

        A_t = G_t - mean over the rows of their rewards        the KL penalty is not in the mean

    For one sample per task. Fails where tasks or roles differ more in what they pay than in what
    was done.
    """

    scope: Reach = "batch"
    affine: bool = (
        True  # but for `--reward.clip_range`, whose bounds are those of what `shape` leaves
    )
    compared = ()

    def shape(self, rows: Sequence[Row], rewards: Tensor) -> Tensor:
        return rewards - rewards.mean()

    def shape_within_tasks(self, rows: Sequence[Row], rewards: Tensor) -> Tensor:
        return rewards

    def statistics(self, batches: Sequence[Batch]) -> float:
        return fmean(row.reward for rows, _, _ in batches for row in rows)

    def mean_and_std(self, statistics: float, key: str) -> tuple[float, float]:
        return statistics, 1.0


ESTIMATORS = ("reinforce", "flash_reinforce")
"""Values of `--algo.advantage.estimator`."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("REINFORCE++ (marl_plugins.builtin.reinforce_pp)")
    add_scope_flag(group, "reinforce_pp")
    group.add_argument(
        "--reinforce_pp.normalise",
        choices=["global", "policy", "role"],
        default="global",
        help="over which rows advantages are normalised: all policies together, each policy (as "
        "Dr. MAS does), or each role",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    idle = idle_scope_flags("reinforce_pp", run.args.reinforce_pp, run.given)
    if run.estimator == "reinforce":
        return [*idle, *_remarks(run)]
    if run.estimator not in ESTIMATORS:
        idle = [
            problem
            for flag in scope_flags("reinforce_pp")
            for problem in run.unused_flag(flag, ESTIMATORS)
        ]
    return [*idle, *run.unused_flag("reinforce_pp.normalise", ["reinforce"])]


def _remarks(run: Run) -> Iterator[Problem]:
    """Yields what one mean over all rows does to some of them."""
    options = run.args.reinforce_pp
    if options.normalise != "global":
        return
    if options.scope == "trajectory" and len(run.recipe.roles) > 1:
        yield Problem(
            "reinforce_pp.trajectory_scope",
            at(flag=("reinforce_pp.scope", "reinforce_pp.normalise")),
            "trajectory returns are normalised over all rows: the first role's return sums the "
            "rewards of all that "
            "follow, so its advantages lie above the others'",
            fix="consider --reinforce_pp.normalise role",
            severity="warning",
        )
    if run.recipe.populations:
        yield Problem(
            "reinforce_pp.population",
            at(flag="reinforce_pp.normalise"),
            "one mean over all policies couples the members of a population: what one earns lowers "
            "the others' advantages",
            fix="consider --reinforce_pp.normalise policy",
            severity="warning",
        )


@hookimpl
def marl_estimator(run: Run) -> Estimator | None:
    returns = returns_of(run.args.reinforce_pp)
    match run.args.algo.advantage.estimator:
        case "reinforce":
            return ReinforcePlusPlus(
                gamma=run.args.algo.advantage.gamma,
                **returns,
                normalise=run.args.reinforce_pp.normalise,
                divide=not run.args.algo.advantage.no_std_norm,
            )
        case "flash_reinforce":
            return FlashReinforce(**returns)
    return None
