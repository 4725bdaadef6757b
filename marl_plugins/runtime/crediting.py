"""Scores to rewards to returns to the rows that are trained on: of a whole step, or of trajectories that have arrived before the
others, if nothing that takes part needs the whole step (`MARL_REACH`). Every trajectory is credited once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from marl_plugins.core.credit import ActionScores, check_rewards, rewards_from_scores, sum_over_scope
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.runtime.penalties import penalise_lengths
from marl_plugins.runtime.policy import UpstreamPolicy
from marl_plugins.runtime.session import Session


class Crediting:
    """That of one step.

    Args:
        steps: Optimiser steps of the step's update.
    """

    def __init__(self, session: Session, steps: int):
        self.session, self.steps = session, steps
        self.run, self.plugins = session.plan.run, session.plan.plugins
        self._done: dict[int, Trajectory] = {}
        """By identity, the trajectories that have been credited."""
        self._rows: dict[tuple[int, ...], list[Row]] = {}
        """By the trajectories, what has been asked for early: policies ask for the same."""
        self._lock = asyncio.Lock()

    async def early(self, trajectories: Sequence[Trajectory]) -> list[Row] | None:
        """The rows of some trajectories; None as long as the run has not shown whether actions are scored."""
        scored = self.run.state(ActionScores).settled(self._scorers())
        if scored is None:
            return None
        which = tuple(map(id, trajectories))
        async with self._lock:
            if which not in self._rows:
                await self._credit(trajectories, scored)
                self._rows[which] = await self._selected(trajectories)
        return self._rows[which]

    async def rows(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        """The rows of the step.

        Args:
            trajectories: All of it.
        """
        scored = self.run.state(ActionScores).of(trajectories, self.run.recipe.roles, self._scorers())
        return await self._selected(await self._credit(trajectories, scored))

    def _scorers(self) -> list[str]:
        grader = ["the recipe's grader"] if hasattr(self.run.grader_module, "score_action") else []
        return [*map("plugin {}".format, self.plugins.owners("marl_score_action")), *grader]

    async def _credit(self, trajectories: Sequence[Trajectory], scored: bool) -> Sequence[Trajectory]:
        """Credit those that have not been credited; all of them, in the order of the step."""
        fresh: Sequence[Trajectory] = [t for t in trajectories if id(t) not in self._done]
        before = [t for t in trajectories if id(t) in self._done]
        if before and not fresh:
            return before
        rewards_from_scores(fresh, scored)
        fresh = await self.plugins.chain("marl_credit", fresh, check_rewards, run=self.run)
        penalise_lengths(fresh, self.run)
        sum_over_scope(fresh, self.session.estimator.return_scope)
        self._done |= {id(t): t for t in fresh}
        return sorted([*before, *fresh], key=lambda t: (t.place, t.sample)) if before else fresh

    async def _selected(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        rows = rows_of(trajectories, frozenset(self.session.trained))
        kept = list(await self.plugins.chain("marl_select", rows, run=self.run, steps=self.steps))
        for row in kept:
            check_version(row, self.session.trained[row.action.policy])
        return kept


def check_version(row: Row, policy: UpstreamPolicy) -> None:
    """Training on rows sampled by other weights than those that are trained ends the run.

    Raises:
        RunEnded: The row is of another policy or version.
    """
    g = row.action.generation
    if (g.policy, g.version) != (policy.name, policy.version):
        raise RunEnded(
            f"row {row.name} was sampled from policy {g.policy!r} version {g.version}, but would train policy "
            f"{policy.name!r} at version {policy.version}; the run's engines and policies are out of step"
        )
