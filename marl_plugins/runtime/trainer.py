"""The multi-agent training loop: one direction of data, one function per arrow.

    tasks -> rollout -> credit -> rows -> select -> forward -> advantages (all policies together) -> update -> weight sync

Each policy's forward passes, update and broadcast are upstream's; what spans the policies is here.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from marl_plugins.core.circuit_breaker import CircuitBreaker
from marl_plugins.core.concurrency import all_of
from marl_plugins.core.credit import Scope
from marl_plugins.core.estimators import Centres, Estimator
from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.rows import Row, auxiliary_rows
from marl_plugins.core.tasks import batches
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.hosts import cpu
from marl_plugins.plan.resume import tag
from marl_plugins.plan.tasks import best_metric
from marl_plugins.records.best import Best, kept_apart
from marl_plugins.records.display import Display
from marl_plugins.records.write import Records, writing
from marl_plugins.reinforce_pp import ReinforcePlusPlus
from marl_plugins.runtime.checkpoints import Checkpoints
from marl_plugins.runtime.crediting import Crediting, check_version
from marl_plugins.runtime.early import Early
from marl_plugins.runtime.experience import Forwarded, Prepared, estimate
from marl_plugins.runtime.metrics import clipped_returns, evaluation, of_updates, signal, summary
from marl_plugins.runtime.policy import UpstreamPolicy
from marl_plugins.runtime.rollout import Running
from marl_plugins.runtime.session import Session

BESIDE = ReinforcePlusPlus(normalise="role")
"""Advantages of rows beside the agents' own: compared with rows of their kind alone."""


class Trainer:
    """One run's loop.

    Args:
        session: What the run is made of, started.
    """

    def __init__(self, session: Session, records: Records, checkpoints: Checkpoints, display: Display):
        self.session = session
        self.plan = session.plan
        self.run = session.plan.run
        self.plugins = session.plan.plugins
        self.records = records
        self.checkpoints = checkpoints
        self.display = display
        self.samples = int(self.run.args.rollout.n_samples_per_prompt)
        self.best = Best(best_metric(self.run.args.ckpt.best_metric_key))
        self.saved = 0
        self.breaker = CircuitBreaker()
        self.shown: set[str] = set()

    def schedule(self) -> Iterator[tuple[int, int, list[Task]]]:
        """All training steps of the run as (step from 1, optimiser steps, tasks); a function of the seed alone."""
        step, args, tasks = 0, self.run.args, self.session.train_tasks
        steps = self.run.episode_steps(len(tasks))
        for episode in range(args.train.num_episodes):
            for k, batch in zip(steps, batches(tasks, args.train.seed, episode, args.rollout.batch_size), strict=False):
                step += 1
                if self.run.max_steps is None or step <= self.run.max_steps:
                    yield step, k, batch

    async def fit(self, done: int) -> int:
        """Train from the step after `done` to the end; the last step's number."""
        args = self.run.args
        self.saved = done
        if (
            done or cpu.device() == "cpu"
        ):  # engines have loaded the original models, and on CPU in float32 whatever is trained
            await all_of(self._sync_one(policy, policy.version) for policy in self.session.trained.values())
        await self._follow(self.session.trained)
        evaluating = self.session.eval_tasks and args.eval.steps > 0
        if evaluating and not done:
            metrics, evaluated = await self.evaluate(0)
            with writing("the records", self.records.folder):
                self.records.step(0, metrics, [], None, evaluated)
        schedule, first, started = list(self.schedule()), done, time.monotonic()
        for step, k, tasks in schedule[done:]:
            try:
                metrics, trajectories, ledger = await self.train_step(step, k, tasks)
            except RunPaused:  # nothing of this step has been trained on: the state is that of the step before
                if done and done != self.saved:
                    await self.save(done)
                raise
            steps, evaluated = schedule[-1][0], []
            if evaluating and (step == steps or step % args.eval.steps == 0):
                found, evaluated = await self.evaluate(step)
                metrics |= found
            self.plugins.hook.marl_log(run=self.run, step=step, metrics=metrics)
            with writing("the records", self.records.folder):
                self.records.step(step, metrics, trajectories, ledger, evaluated)
            if step % max(1, args.logger.logging_steps) == 0:
                self.display.step(metrics, steps, (time.monotonic() - started) / (step - first) * (steps - step))
            done = step
            if is_due(step, args.ckpt.save_steps) or self.best.step == step or self.breaker.reason:
                await self.save(step)
            self.breaker.check()
        return done

    async def train_step(
        self, step: int, k: int, tasks: Sequence[Task]
    ) -> tuple[dict[str, float], list[Trajectory], Ledger]:
        """One step: rollout, credit, advantages, update and weight sync."""
        seconds: dict[str, float] = {}
        policies, phase, crediting = self.session.policies, timed_phase(self.display, seconds), Crediting(self.session, k)
        early = Early(crediting, self.session.estimator, policies, self.run.state(Centres))
        with phase("rollout", len(tasks) * self.samples) as tick:
            await all_of(policy.wake() for policy in policies.values())
            rollout = await self.rollout(tasks, step, tick, early)
            await all_of(policy.sleep() for policy in policies.values())
        trajectories = self.session.rollout.in_order(rollout.trajectories)
        if prompts := first_prompts(trajectories, self.session.cast.roles, self.shown):
            self.display.first_prompts(prompts)
        with phase("advantages"):
            rows = await crediting.rows(trajectories)
            ledger = Ledger.of(step, trajectories, rows)
            beside = self.plugins.hook.marl_auxiliary(run=self.run, trajectories=trajectories)
            more, ledger.beside = rows_beside(beside, self.session, step)
            found = await all_of(
                [
                    advantages(self.session.trained, rows, self.session.estimator, rollout.forwarded),
                    advantages(self.session.trained, more, BESIDE),
                ]
            )
            prepared = [*map(early.carried, found[0]), *found[1]]
            early.note(found[0])
        metrics = {"step": float(step), **summary(trajectories, ledger), **signal(rows, self.session.estimator.group_by)}
        self.display.rollout(step, metrics, trajectories)
        with phase("update"):
            updates = await self._update(prepared, k, step)
        with phase("sync"):
            await self._sync([self.session.trained[p] for p in updates])
        metrics |= of_updates(prepared, updates)
        metrics |= self.session.room.metrics() if self.session.room else {}
        metrics["engines/restarted"] = float(sum(p.engines.restarted for p in policies.values()))
        for remark in remarks(prepared, policies.values(), self.session.estimator.return_scope):
            self.display.say(f"step {step}: {remark}")
        metrics |= {f"seconds/{name}": value for name, value in seconds.items()}
        metrics["tokens_per_second"] = metrics["tokens/sampled"] / seconds["rollout"]
        metrics |= self.session.estimator.metrics(rows) if rows else {}
        self.breaker.step(ledger, trajectories)
        self.breaker.check()
        return metrics, trajectories, ledger

    async def rollout(self, tasks: Sequence[Task], step: int, tick: Any, early: Early) -> Running:
        """The rollout of a step, at its end: its trajectories, and what plugins have made of them beside it."""
        rollout = self.session.rollout
        running = Running(step, tasks, rollout.pools, self.session.policies, early)

        async def collect() -> None:
            async with aclosing(rollout.train(tasks, self.samples, step)) as arriving:
                async for trajectory in arriving:
                    running.arrive(trajectory)
                    tick()
            running.end()

        await all_of([collect(), *self.plugins.hook.marl_beside(run=self.run, rollout=running)])
        return running

    async def _update(self, prepared: Sequence[Prepared], k: int, step: int) -> dict[str, dict[str, float]]:
        update, trained = self.plugins.hook.marl_update, self.session.trained
        results = await all_of(
            update(run=self.run, policy=trained[p.policy], prepared=p, steps=k, step=step) for p in prepared
        )
        return dict(zip([p.policy for p in prepared], results, strict=True))

    async def _sync(self, policies: Sequence[UpstreamPolicy]) -> None:
        """Every updated policy's engines to its new weights, then those of the policies that follow it."""
        await all_of(self._sync_one(policy, policy.version + 1) for policy in policies)
        await self._follow([policy.name for policy in policies])

    async def _follow(self, names: Collection[str]) -> None:
        versions = {name: self.session.trained[name].version for name in names}
        following = [p for p in self.session.policies.values() if p.spec.follows in versions]
        await all_of(self._sync_one(policy, versions[policy.spec.follows]) for policy in following)

    async def _sync_one(self, policy: UpstreamPolicy, version: int) -> None:
        """A sync that did not happen ends the run: what is sampled next would be trained by other weights than sampled it."""
        done = await self.plugins.hook.marl_sync(run=self.run, policy=policy, version=version)
        if not done or (policy.trained and policy.version != version):  # one that follows may hold an earlier version
            raise RunEnded(
                f"the engines of policy {policy.name!r} were not brought to version {version} (marl_sync returned {done!r})"
            )

    async def evaluate(self, step: int) -> tuple[dict[str, float], list[Trajectory]]:
        """Metrics and trajectories of the evaluation tasks, shown, and counted for the circuit breaker."""
        await all_of(policy.wake() for policy in self.session.policies.values())
        metrics, found = await evaluation(self.session.rollout, self.session.eval_tasks, self.run.args.eval, self.display)
        await all_of(policy.sleep() for policy in self.session.policies.values())
        self.display.evaluation(step, metrics, found)
        metrics |= self.best.after(step, metrics, self.display.say)
        self.breaker.evaluation(step, found)
        return metrics, found

    async def save(self, step: int) -> None:
        """Save every policy and the plugins' state as one step; the best one's weights are also kept apart."""
        trained = self.session.trained
        with self.display.phase("checkpoint"), self.checkpoints.saving(step):
            await all_of(policy.save(tag(step), {"step": step}) for policy in trained.values())
            versions, state = {name: policy.version for name, policy in trained.items()}, self.plugins.state(self.run)
            await asyncio.to_thread(self.records.sync)
            if self.best.step == step:
                with kept_apart(self.records.folder, self.best) as folder:
                    await all_of(policy.save_model(folder) for policy in trained.values())
            commit, files = self.checkpoints.commit, self.plugins.files(self.run)
            await asyncio.to_thread(commit, step, versions, state, files, self.best.state())  # reads all that was saved
        self.saved = step

    async def save_models(self) -> None:
        """Each policy's weights in Hugging Face format, in its own folder."""
        with self.display.phase("saving models", announce=True), writing("the final weights", self.records.folder):
            await all_of(policy.save_model() for policy in self.session.trained.values())


def first_prompts(trajectories: Iterable[Trajectory], roles: Mapping[str, RoleSpec], shown: set[str]) -> dict[str, str]:
    """The context of the first action of every role that is not in `shown`, as the model saw it; they are put into it."""
    prompts: dict[str, str] = {}
    for action in (a for t in trajectories for a in t.actions):
        if action.role not in shown:
            shown.add(action.role)
            tokenizer = roles[action.role].chat.tokenizer
            prompts[action.role] = tokenizer.decode(list(action.context_ids), skip_special_tokens=False)
    return {role: prompts[role] for role in roles if role in prompts}


def is_due(step: int, every: int) -> bool:
    """Whether a step is one of those that are saved regularly."""
    return every > 0 and step % every == 0


def timed_phase(display: Display, seconds: dict[str, float]) -> Any:
    """`with phase(name, total)`: progress shown, and its seconds noted."""

    @contextmanager
    def phase(name: str, total: int | None = None) -> Iterator[Any]:
        started = time.monotonic()
        with display.phase(name, total) as tick:
            yield tick
        seconds[name] = time.monotonic() - started

    return phase


def remarks(prepared: Sequence[Prepared], policies: Iterable[UpstreamPolicy], scope: Scope) -> list[str]:
    """What a person should know of a step beside its metrics."""
    found = []
    if clipped := sum(p.clipped for p in prepared):
        found.append(clipped_returns(clipped, sum(len(p.rows) for p in prepared), scope))
    for policy in policies:
        found += policy.engines.remarks
        policy.engines.remarks.clear()
    return found


async def advantages(
    trained: Mapping[str, UpstreamPolicy], rows: Sequence[Row], estimator: Estimator, known: Sequence[Forwarded] = ()
) -> list[Prepared]:
    """The rows with their tensors, by policy, their advantages taken over all policies together.

    Args:
        known: What has been forwarded beside the rollout.
    """
    by_policy: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_policy[row.action.policy].append(row)
    forwarded = await all_of(
        trained[name].forward(mine, [f for f in known if f.policy == name]) for name, mine in by_policy.items()
    )
    return estimate(forwarded, estimator)


def rows_beside(given: Iterable[Sequence[Trajectory]], session: Session, step: int) -> tuple[list[Row], Ledger | None]:
    """The rows of policies that play no role, and their account.

    Args:
        given: What each plugin gave (`marl_auxiliary`).

    Raises:
        RunEnded: A row is of a policy that plays a role, or of other weights than are trained.
    """
    beside = [trajectory for each in given for trajectory in each]
    rows = auxiliary_rows(beside, {name for name, p in session.trained.items() if p.spec.is_due(step)})
    playing = session.cast.policies
    for row in rows:
        check_version(row, session.trained[row.action.policy])
        if row.action.policy in playing:
            raise RunEnded(f"row {row.name} of marl_auxiliary is of policy {row.action.policy!r}, which plays a role")
    return rows, Ledger.of(step, beside, rows) if beside else None
