"""Turns the scores of trajectories into the rows that are trained on.

    scores -> rewards -> marl_credit (a trajectory or more) -> marl_credit_step (the whole step) ->
    returns -> rows -> marl_select

Trajectories that arrive before the others can be credited at once if no plugin needs the whole
step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from marl_plugins.core.credit import ActionScores, check_rewards, rewards_from_scores
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.run import Run, max_lag, queue_size
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.runtime.penalties import penalise_lengths

if TYPE_CHECKING:
    from marl_plugins.core.processes import PolicyProcesses
    from marl_plugins.engine.runtime.policy import UpstreamPolicy


class CreditAssignment:
    """Turns the trajectories of one step into rows, whole or in part. Every trajectory is credited
    once.

    Args:
        trained: The policies that are updated, by name.
        estimator: Says what an action is credited with.
        steps: Optimiser steps of the step's updates.
        sampled: What the step's rollout has sampled; every plugin is held to it when it returns.
    """

    def __init__(
        self,
        run: Run,
        plugins: Plugins,
        trained: Mapping[str, UpstreamPolicy],
        estimator: Estimator,
        steps: int,
        sampled: SampledActions,
    ):
        self.run, self.plugins, self.trained, self.estimator, self.steps = (
            run,
            plugins,
            trained,
            estimator,
            steps,
        )
        self.sampled = sampled
        self._credited: set[Trajectory] = set()
        self._rows: dict[tuple[Trajectory, ...], list[Row]] = {}
        """What has been asked for early, by the trajectories: the policies ask for the same."""
        self._lock = asyncio.Lock()

    async def early(self, trajectories: Sequence[Trajectory]) -> list[Row] | None:
        """Returns the rows of some trajectories; None as long as the run has not shown whether
        actions are scored."""
        scored = self.run.state(ActionScores).settled(self.run.scorers)
        if scored is None:
            return None
        which = tuple(trajectories)
        async with self._lock:
            if which not in self._rows:
                await self._credit(trajectories, scored)
                self._rows[which] = await self._selected(trajectories)
        return self._rows[which]

    async def rows(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        """Returns the rows of the step.

        Args:
            trajectories: All of the step's, in its order.
        """
        scored = self.run.state(ActionScores).of(
            trajectories, self.run.recipe.roles, self.run.scorers
        )
        return await self._selected(await self._credit(trajectories, scored, whole_step=True))

    def check_leaving(self, trajectories: Collection[Trajectory]) -> None:
        """Checks that trajectories that leave the step have not been credited: their gradients may
        be summed already.

        Raises:
            RunPaused: One has.
        """
        if credited := [t for t in trajectories if t in self._credited]:
            raise RunPaused(
                f"{len(credited)} trajectories that marl_exchange leaves out have been trained on "
                "as they arrived, the first "
                f"{credited[0].name}; run without --streaming.gradients"
            )

    async def _credit(
        self, trajectories: Sequence[Trajectory], scored: bool, *, whole_step: bool = False
    ) -> Sequence[Trajectory]:
        """Credits those that have not been credited; returns all of them, in the order of the
        step."""
        fresh: Sequence[Trajectory] = [t for t in trajectories if t not in self._credited]
        before = [t for t in trajectories if t in self._credited]
        if before and not fresh:
            return before
        rewards_from_scores(fresh, scored)
        for hook in ("marl_credit", *(["marl_credit_step"] if whole_step else [])):

            def check(
                plugin: str, trajectories: Sequence[Trajectory], answer: object, hook: str = hook
            ) -> None:
                self.sampled.check_credit(plugin, hook, trajectories, answer)
                check_rewards(plugin, hook, trajectories)

            await self.plugins.chain(hook, fresh, check, run=self.run)
        penalise_lengths(fresh, self.run)
        self.estimator.write_returns(fresh)
        self._credited.update(fresh)
        return sorted([*before, *fresh], key=lambda t: t.order) if before else fresh

    async def _selected(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        oldest = max_lag(self.run)
        rows: Sequence[Row] = rows_of(trajectories, frozenset(self.trained))
        if queue_size(self.run.args):  # else one of another version is a fault, and ends the run
            rows = without_stale(rows, self.trained, oldest)
        check = self.sampled.check_selection
        kept = list(
            await self.plugins.chain("marl_select", rows, check, run=self.run, steps=self.steps)
        )
        check_versions(kept, self.trained, oldest)
        return kept


def without_stale(
    rows: Sequence[Row], trained: Mapping[str, PolicyProcesses | UpstreamPolicy], oldest: int
) -> list[Row]:
    """Returns the rows whose oldest token is at most so many versions of its policy old; the others
    are told that they are `stale`."""
    kept = []
    for row in rows:
        if row.action.generation.version < trained[row.action.policy].version - oldest:
            row.action.left_out = "stale"
        else:
            kept.append(row)
    return kept


def check_versions(
    rows: Collection[Row], trained: Mapping[str, UpstreamPolicy], oldest: int = 0
) -> None:
    """Checks that each row was sampled by weights of the policy that it is about to train, and by
    which versions of them.

    Args:
        oldest: How many versions older than the policy's they may be; 0: a row trains the very
            weights that sampled it.

    Raises:
        RunEnded: A row is of another policy or version, or of a policy that is not trained.
    """
    for row in rows:
        g, policy = row.action.generation, trained.get(row.action.policy)
        if policy is None:
            raise RunEnded(
                f"row {row.name} is of policy {row.action.policy!r}, which is not trained in this "
                "run"
            )
        if (
            g.policy != policy.name
            or not policy.version - oldest <= g.version <= g.newest <= policy.version
        ):
            raise RunEnded(
                f"row {row.name} was sampled from policy {g.policy!r} version {g.version}, but "
                "would train policy "
                f"{policy.name!r} at version {policy.version}; the run's engines and policies are "
                "out of step"
            )
