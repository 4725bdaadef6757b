"""Saved steps: every policy, the plugins' state and the best weights as one; and the final
weights."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from marl_plugins.core.concurrency import all_of
from marl_plugins.engine.manager import weights_of
from marl_plugins.engine.plan.resume import tag
from marl_plugins.engine.plan.tasks import best_metric
from marl_plugins.engine.records.best import Best, kept_apart
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.write import Records, writing
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.rollouts import RolloutQueue
from marl_plugins.engine.runtime.session import Session
from marl_plugins.engine.runtime.waiting import save_waiting


class StepSaver:
    """Saves the steps of a session, with the rollouts that wait then."""

    def __init__(
        self,
        session: Session,
        records: Records,
        checkpoints: Checkpoints,
        display: Display,
        rollouts: RolloutQueue,
    ):
        self.session, self.records, self.checkpoints, self.display = (
            session,
            records,
            checkpoints,
            display,
        )
        self.rollouts = rollouts
        self.best = Best(best_metric(session.plan.run.args.ckpt.best_metric_key))
        """The best step so far, whose weights are also kept apart."""
        self.further = weights_of(session.plan.plugins, session.plan.run)
        """Weights that extensions keep: their classes, by the name of the folder for the weights
        (`marl_weights`)."""
        self.last = 0
        """The step that was saved last; 0 before the first."""
        self.state = "{}"
        """The plugins' state after the last step that was trained, as JSON."""
        self.waiting: frozenset[int] = frozenset()
        """The rollouts that waited then."""

    def concluded(self) -> None:
        """Keeps the plugins' state, so that a step that is paused later leaves no trace in it, nor
        do the rollouts that were made meanwhile."""
        plan = self.session.plan
        if not plan.run.args.ckpt.disable_ds:
            self.state = json.dumps(plan.plugins.state(plan.run))
            self.waiting = frozenset(self.rollouts.waiting)

    async def save(self, step: int) -> None:
        """Saves every policy, the plugins' state and what waits to be trained as one step; with
        `--ckpt.disable_ds` the best weights alone."""
        if self.session.plan.run.args.ckpt.disable_ds:
            with self.display.phase("checkpoint"), writing("the best weights", self.records.folder):
                await self._save_best(step)
        else:
            await self._save_step(step)
        self.last = step

    async def _save_step(self, step: int) -> None:
        trained, plan = self.session.trained, self.session.plan
        with self.display.phase("checkpoint"), self.checkpoints.saving(step):
            await all_of(policy.save(tag(step), {"step": step}) for policy in trained.values())
            versions = {name: policy.version for name, policy in trained.items()}
            await asyncio.to_thread(self.records.sync)
            await self._save_best(step)
            rollouts = {n: r for n, r in self.rollouts.waiting.items() if n in self.waiting}
            waiting = save_waiting(self.checkpoints.folder, step, rollouts)
            commit, files = self.checkpoints.commit, [*plan.plugins.files(plan.run), *waiting]
            await asyncio.to_thread(
                commit, step, versions, json.loads(self.state), files, self.best.state()
            )  # reads all that was saved

    async def _save_best(self, step: int) -> None:
        if self.best.step == step:
            with kept_apart(self.records.folder, self.best) as folder:
                await all_of(policy.save_model(folder) for policy in self.session.trained.values())
                await self._save_further(folder)

    async def save_models(self) -> None:
        """Saves each policy's weights in Hugging Face format, in its own folder, and what
        extensions keep beside them."""
        with (
            self.display.phase("saving models", announce=True),
            writing("the final weights", self.records.folder),
        ):
            await all_of(policy.save_model() for policy in self.session.trained.values())
            await self._save_further(self.records.folder)

    async def _save_further(self, folder: Path) -> None:
        for name, extension in self.further.items():
            await all_of(
                policy.save_model(folder / name, extension)
                for policy in self.session.trained.values()
            )
