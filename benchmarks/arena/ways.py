"""The ways of credit that meet in the arena."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.arena import references as of
from benchmarks.arena.package import Advantages, OfStep
from benchmarks.arena.rollouts import Estimator, OnRollouts
from benchmarks.arena.show import BASELINE
from marl_plugins import competence, cooperation, counterfactual, load_file, rae, reward_backprop
from marl_plugins.builtin.gae import Gae
from marl_plugins.builtin.groups import GroupMean, GroupNorm, LeaveOneOut, ReinforceBaseline
from marl_plugins.builtin.reinforce_pp import FlashReinforce, ReinforcePlusPlus
from marl_plugins.core.estimators import Estimator as PackageEstimator
from marl_plugins.core.estimators import GroupBy
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.reward_backprop import BackpropState
from marl_plugins.reward_backprop.rules import Rules

TURN: GroupBy = "task+role+turn"
SIBLINGS = "--counterfactual.siblings"
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@dataclass(frozen=True)
class Way:
    """A way of credit.

    Args:
        kind: `estimator` (of this package, from outcomes), `coach` (of this package, from scores),
            `reference` (nobody's here) or `exact` (for whoever knows the truth).
        unbiased: Whether it claims to estimate the gradient of the expected outcome itself.
    """

    name: str
    kind: str
    estimate: Estimator
    unbiased: bool = False


def by_package(
    name: str, estimator: PackageEstimator, *, unbiased: bool = False, **more: Any
) -> Way:
    kind = "coach" if "score" in more else "estimator"
    return Way(name, kind, OnRollouts(Advantages(estimator, **more)), unbiased)


class Contributions:
    """`marl_plugins.reward_backprop` with the offline rules, asked once about every trajectory, as
    nothing of it changes: an asynchronous pass takes longer than all else."""

    marl_options = staticmethod(reward_backprop.marl_options)

    def __init__(self) -> None:
        self._known: dict[Trajectory, list[float]] = {}

    async def marl_credit_step(self, trajectories: Sequence[Trajectory], run: Any) -> None:
        options, state = run.args.reward_backprop, run.state(BackpropState)
        state.attributor = state.attributor or Rules(defaultdict(str))
        for trajectory in trajectories:
            if trajectory not in self._known:
                rewards = [action.reward for action in trajectory.actions]
                await reward_backprop.credit_trajectory(trajectory, run)
                parts = [action.terms["contribution"] for action in trajectory.actions]
                self._known[trajectory] = parts
                for action, reward in zip(trajectory.actions, rewards, strict=True):
                    action.reward = reward
            for action, part in zip(trajectory.actions, self._known[trajectory], strict=True):
                action.reward = options.alpha * (action.reward or 0.0) + part


def backprop(name: str, alpha: int, **more: Any) -> Way:
    words = ["--reward_backprop.alpha", str(alpha)]
    advantages = Advantages(ReinforcePlusPlus(), Contributions(), words, **more)
    return Way(name, "coach", OnRollouts(advantages))


def ways() -> list[Way]:
    """All of them, anew: some keep what earlier steps have taught them."""
    maxrl: type[GroupMean] = load_file(EXAMPLES / "maxrl.py").MaxRL
    package = [
        by_package(BASELINE, LeaveOneOut(group_by=TURN), unbiased=True),
        by_package("dr_grpo", GroupMean(group_by=TURN)),
        by_package("group_norm", GroupNorm(group_by=TURN)),
        by_package("reinforce_baseline", ReinforceBaseline(group_by=TURN)),
        by_package("maxrl", maxrl(group_by=TURN)),
        by_package("reinforce", ReinforcePlusPlus()),
        by_package("reinforce, by role", ReinforcePlusPlus(normalise="role")),
        by_package("reinforce, no deviation", ReinforcePlusPlus(divide=False)),
        by_package("flash_reinforce", FlashReinforce()),
        by_package("gae, exact critic", Gae()),
        by_package("gae, exact critic, no deviation", Gae(divide=False)),
        by_package("no baseline", PackageEstimator(), unbiased=True),
        by_package("rae", PackageEstimator(), plugin=rae, unbiased=True),
        by_package("competence", PackageEstimator(), plugin=competence, unbiased=True),
        Way("counterfactual, 2", "estimator", OfStep(counterfactual, [SIBLINGS, "2"]), True),
        Way("counterfactual, 4", "estimator", OfStep(counterfactual, [SIBLINGS, "4"]), True),
        backprop("reward_backprop, outcomes alone", 0),
        by_package("coach", ReinforcePlusPlus(), score=of.duty),
        by_package("coach, rloo", LeaveOneOut(group_by=TURN), score=of.duty),
        by_package(
            "coach, returns along the graph",
            ReinforcePlusPlus(return_scope="trajectory", normalise="role"),
            score=of.duty,
        ),
        by_package("coach, noisy", ReinforcePlusPlus(), score=of.Noisy()),
        by_package("coach, blames the next", ReinforcePlusPlus(), score=of.blames_the_next),
        by_package("coach, cooperation", ReinforcePlusPlus(), plugin=cooperation, score=of.duty),
        backprop("coach, reward_backprop", 1, score=of.duty),
        by_package("coach, exact effect", ReinforcePlusPlus(divide=False), score=of.effect),
    ]
    references = [
        Way("Dr. MAS", "reference", OnRollouts(of.dr_mas)),
        Way("AT-GRPO", "reference", OnRollouts(of.at_grpo)),
        Way("MAReMax", "reference", OnRollouts(of.maremax)),
        Way("forks, 2 a place", "reference", of.Forks(2), True),
        Way("forks, 4 a place", "reference", of.Forks(4), True),
        Way("forks, 4, deviation", "reference", of.Forks(4, of.standardised)),
        Way("forks, 4, all trained", "reference", of.Forks(4, later=True), True),
        Way("C3 tree, by level", "reference", of.Tree(), True),
        Way("C3 tree, as released", "reference", of.Tree(2, of.standardised, by_level=False)),
        Way("difference rewards, live", "reference", of.Difference(live=True), True),
        Way("difference rewards, fixed", "reference", of.Difference(live=False)),
        Way("Shapley values", "reference", of.Shapley()),
        Way("exact critic of contexts", "exact", OnRollouts(of.local_critic), True),
        Way("exact central critic", "exact", OnRollouts(of.central_critic), True),
        Way("COMA, exact", "exact", OnRollouts(of.coma), True),
    ]
    return [*package, *references]
