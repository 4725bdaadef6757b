"""The multi-agent training loop: one direction of data, one function per arrow.

    tasks -> rollout -> exchange -> credit -> rows -> select -> forward -> advantages (of all
    policies) -> update -> weight sync

Each policy's forward passes, update and broadcast are upstream's; what spans the policies is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from marl_plugins.core.concurrency import all_of
from marl_plugins.core.failures import RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.recipe.tasks import batches
from marl_plugins.core.run import is_partial, queue_size
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.write import Records, writing
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.circuit_breaker import CircuitBreaker
from marl_plugins.engine.runtime.experience import PreparedExperience
from marl_plugins.engine.runtime.metrics import (
    evaluation,
    first_prompts,
    lag_metrics,
    policy_outcome_metrics,
    remarks,
    rollout_metrics,
    step_metrics,
    version_change_metrics,
)
from marl_plugins.engine.runtime.rollouts import RolloutQueue
from marl_plugins.engine.runtime.saving import StepSaver
from marl_plugins.engine.runtime.session import Session
from marl_plugins.engine.runtime.step import RunningStep
from marl_plugins.engine.runtime.waiting import lag_of, read_waiting
from marl_plugins.engine.runtime.weight_sync import WeightSync


@dataclass(frozen=True)
class TrainedStep:
    """A step whose policies have been updated.

    Args:
        updates: Upstream's metrics by policy.
        metrics: Of the rollout and its rows.
        ended: When, by `time.monotonic`.
    """

    ledger: Ledger
    prepared: Sequence[PreparedExperience]
    updates: Mapping[str, Mapping[str, float]]
    metrics: dict[str, float]
    ended: float


class Trainer:
    """One run's loop.

    Args:
        session: What the run is made of, started.
    """

    def __init__(
        self, session: Session, records: Records, checkpoints: Checkpoints, display: Display
    ):
        self.session = session
        self.run = session.plan.run
        self.plugins = session.plan.plugins
        self.records = records
        self.display = display
        self.samples = int(self.run.args.rollout.n_samples_per_prompt)
        self.planned = {step: (k, tasks) for step, k, tasks in self.schedule()}
        self.rollouts = RolloutQueue(self.roll_out, queue_size(self.run.args), self._last_rollout())
        self.saving = StepSaver(session, records, checkpoints, display, self.rollouts)
        self.best = self.saving.best
        self.weight_sync = WeightSync(session)
        self.breaker = CircuitBreaker(self.run.max_idle_steps)
        self.shown: set[str] = set()

    def schedule(self) -> Iterator[tuple[int, int, list[Task]]]:
        """Yields all training steps of the run as (step from 1, optimiser steps, tasks); a function
        of the seed alone.

        Those after `--max_steps` are not trained in this run, but maybe in one that resumes it.
        """
        step, args, tasks = 0, self.run.args, self.session.train_tasks
        steps = self.run.episode_steps(len(tasks))
        for episode in range(args.train.num_episodes):
            for k, batch in zip(
                steps,
                batches(tasks, args.train.seed, episode, args.rollout.batch_size),
                strict=False,
            ):
                step += 1
                yield step, k, batch

    def _last_rollout(self) -> int:
        """The last step of which a rollout is made: a run that is resumed at the last step that is
        saved regularly finds those that would wait."""
        ckpt = self.run.args.ckpt
        if ckpt.save_steps <= 0 or ckpt.disable_ds:
            return self.steps
        saved = self.steps - self.steps % int(ckpt.save_steps)
        waiting = saved + queue_size(self.run.args)
        return min(len(self.planned), max(self.steps, waiting))

    def restore(self, done: int, files: Collection[str]) -> None:
        """Takes the rollouts that waited when a step was saved, but those that would be too old for
        this run.

        Args:
            files: Those that the step's manifest names.
        """
        if not self.rollouts.size:
            return
        versions = {name: policy.version for name, policy in self.session.trained.items()}
        folder, known = self.saving.checkpoints.folder, self.session.tasks_by_id
        waiting = read_waiting(folder, done, files, self.planned, known, self.begin_step)
        self.rollouts.waiting |= {
            n: step
            for n, step in waiting.items()
            if lag_of(step, done, versions) <= self.rollouts.size
        }

    @property
    def steps(self) -> int:
        """The last step that is trained."""
        return min(len(self.planned), self.run.max_steps or len(self.planned))

    async def fit(self, done: int) -> int:
        """Trains from the step after `done` to the end, and returns the last step's number."""
        args = self.run.args
        self.saving.last = done
        await self.weight_sync.begin()
        evaluating = self.session.eval_tasks and args.eval.steps > 0
        if evaluating and not done:
            metrics, evaluated = await self.evaluate(0)
            with writing("the records", self.records.folder):
                self.records.step(0, metrics, [], None, evaluated)
        steps, first, started = self.steps, done, time.monotonic()
        for step in range(done + 1, steps + 1):
            try:
                made, trained = await self.train_step(step)
            except (
                RunPaused
            ):  # nothing of this step has been trained on: the state is that of the step before
                if done and done != self.saving.last:
                    await self.saving.save(done)
                raise
            due = bool(evaluating) and (step == steps or step % args.eval.steps == 0)
            metrics = trained.metrics
            evaluated, paused = await conclude(self, made, metrics, due)
            paused = paused or self.rollouts.paused
            with writing("the records", self.records.folder):
                trajectories = [*made.trajectories, *made.received]
                self.records.step(step, metrics, trajectories, trained.ledger, evaluated)
            if step % max(1, args.logger.logging_steps) == 0:
                self.display.step(
                    metrics,
                    steps,
                    (time.monotonic() - started) / (step - first) * (steps - step),
                )
            self.saving.concluded()
            done = step
            if (
                is_due(step, args.ckpt.save_steps)
                or self.best.step == step
                or self.breaker.reason
                or paused
            ):
                await self.saving.save(step)
            if paused:
                raise paused
            self.breaker.check()
        if done > first and done != self.saving.last and self.breaker.untrained:
            await self.saving.save(done)
        self.breaker.end()
        return done

    def begin_step(self, number: int) -> RunningStep:
        """Returns a step whose rollout has not begun."""
        return RunningStep(self.session, number, *self.planned[number])

    async def roll_out(self, number: int) -> RunningStep:
        """Makes the rollout of a step."""
        step = self.begin_step(number)
        with timed_phase(self.display, step.seconds)(
            "rollout", len(step.tasks) * self.samples
        ) as tick:
            await all_of(policy.wake() for policy in self.session.policies.values())
            await step.roll_out(self.samples, tick)
        return step

    async def train_step(self, number: int) -> tuple[RunningStep, TrainedStep]:
        """Trains one step, during the rollout of a later one with `--train.async_enable`; then
        engines get the new weights, with
        `--train.partial_rollout_enable` in the middle of that rollout. The metrics are not yet
        those of the step's parts."""
        step = await self.rollouts.take(number)
        partial = is_partial(self.run.args)
        trained, _ = await all_of(
            [self.train(step, then_sync=partial), self.rollouts.ahead(number)]
        )
        if self.rollouts.size:
            step.seconds["wait"] = time.monotonic() - trained.ended
        if not partial:
            with timed_phase(self.display, step.seconds)("sync"):
                await self.weight_sync.updated(list(trained.updates))
        prepared, policies = trained.prepared, self.session.policies.values()
        metrics = trained.metrics
        metrics |= step_metrics(
            prepared, trained.updates, policies, step.seconds, metrics["tokens/sampled"]
        )
        metrics |= self.session.backend.metrics()
        for remark in remarks(prepared, policies, step.estimator.return_scope):
            self.display.say(f"step {number}: {remark}")
        self.breaker.step(trained.ledger, step.trajectories)
        if not trained.updates:  # else it is saved first
            self.breaker.check()
        return step, trained

    async def train(self, step: RunningStep, then_sync: bool) -> TrainedStep:
        """Trains on a rollout: exchange, credit, forward passes, advantages and updates. Engines
        keep their weights, unless they are to be synced at once."""
        phase, policies = timed_phase(self.display, step.seconds), self.session.policies.values()
        with phase("exchange"):
            await step.exchange()
            await all_of(policy.sleep() for policy in policies)
        if prompts := first_prompts(step.trajectories, self.session.cast, self.shown):
            self.display.first_prompts(prompts)
        with phase("advantages"):
            rows = await step.rows()
            ledger = step.ledger(rows)
            prepared = await step.prepare(rows)
        metrics = rollout_metrics(step.number, step.trajectories, ledger, rows, step.estimator)
        if self.session.cast.has_population:
            metrics |= policy_outcome_metrics([t for t in step.trajectories if not t.forked])
        if self.rollouts.size:
            metrics |= lag_metrics(
                rows, {name: policy.version for name, policy in self.session.trained.items()}
            )
        if is_partial(self.run.args):
            metrics |= version_change_metrics(rows)
        self.display.rollout(step.number, metrics, step.trajectories, ledger)
        with phase("update"):
            results = await all_of(
                self.plugins.hook.marl_update(
                    run=self.run,
                    policy=self.session.trained[p.policy],
                    prepared=p,
                    steps=step.optimiser_steps,
                    step=step.number,
                )
                for p in prepared
            )
            updates = dict(zip([p.policy for p in prepared], results, strict=True))
        if then_sync:
            with phase("sync"):
                await self.weight_sync.updated(list(updates))
        return TrainedStep(ledger, prepared, updates, metrics, time.monotonic())

    async def evaluate(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Returns metrics of the evaluation tasks, by the newest weights and by those that
        extensions keep beside them (`marl_weights`), and the trajectories of the former, which are
        shown, and counted for the circuit breaker.

        Before the first step, extensions keep the weights themselves.
        """
        metrics, trajectories = await self._play(step)
        for name, extension in self.saving.further.items() if step else ():
            others, _ = await self._play(step, name, extension)
            metrics |= {
                f"{name}/{key.removeprefix('eval/')}": value for key, value in others.items()
            }
        metrics |= self.best.after(step, metrics, self.display.say)
        self.breaker.evaluation(step, trajectories)
        return metrics, trajectories

    async def _play(
        self, step: int, name: str = "", extension: str = ""
    ) -> tuple[dict[str, float], list[Trajectory]]:
        """Plays the evaluation tasks. An extension's weights are in the engines for so long, under
        the version that these hold; nothing else runs meanwhile."""
        session = self.session
        trained = session.trained.values() if extension else ()
        policies = session.policies.values()
        # Before engines wake: they may share a device with training processes.
        further = await all_of(policy.further(extension) for policy in trained)
        await all_of(policy.wake() for policy in policies)
        pieces_by_policy = zip(trained, further, strict=True)
        await all_of(policy.give(pieces, policy.version) for policy, pieces in pieces_by_policy)
        metrics, trajectories = await evaluation(
            session.rollout, session.eval_tasks, self.run.args.eval, self.display
        )
        await all_of(policy.sleep() for policy in policies)
        if extension:
            await self.weight_sync.again()
        self.display.evaluation(step, metrics, trajectories, name)
        return metrics, trajectories


async def conclude(
    trainer: Trainer, step: RunningStep, metrics: dict[str, float], evaluate: bool
) -> tuple[list[Trajectory], RunPaused | None]:
    """Completes the metrics of a step that is trained; returns what it was evaluated on, and what
    pauses the run once it is saved."""
    evaluated: list[Trajectory] = []
    paused: RunPaused | None = None
    try:
        metrics.update(step.metrics())
        if evaluate:
            further, evaluated = await trainer.evaluate(step.number)
            metrics.update(further)
    except RunPaused as error:
        paused = error
    try:  # plugins keep what they have learnt from the step: it is trained
        trainer.plugins.hook.marl_log(run=trainer.run, step=step.number, metrics=metrics)
    except RunPaused as error:
        paused = paused or error
    return evaluated, paused


def is_due(step: int, every: int) -> bool:
    """Returns whether a step is one of those that are saved regularly."""
    return every > 0 and step % every == 0


def timed_phase(
    display: Display, seconds: dict[str, float]
) -> Callable[..., AbstractContextManager[Callable[[], None]]]:
    """Shows a phase's progress, and notes its seconds (`with phase(name, total)`)."""

    @contextmanager
    def phase(name: str, total: int | None = None) -> Iterator[Callable[[], None]]:
        started = time.monotonic()
        with display.phase(name, total) as tick:
            yield tick
        seconds[name] = time.monotonic() - started

    return phase
