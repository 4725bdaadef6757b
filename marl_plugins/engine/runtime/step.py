"""One training step while it is made: its trajectories, its rows, and the parts that plugins have
in it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from marl_plugins.core.concurrency import all_of
from marl_plugins.core.failures import RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.rows import Row
from marl_plugins.core.run import AnswerLimits
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.steps import StepPart
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.core.trajectory import Generation, Task, Trajectory
from marl_plugins.engine.manager import check_tasks_of_step, chosen_tasks, parts_of
from marl_plugins.engine.runtime.crediting import CreditAssignment
from marl_plugins.engine.runtime.exchange import StepExchange
from marl_plugins.engine.runtime.experience import ForwardedExperience, PreparedExperience, estimate
from marl_plugins.engine.runtime.forking import Original, fork
from marl_plugins.engine.runtime.guarded_part import HOOK, GuardedPart

if TYPE_CHECKING:
    from collections.abc import Callable

    from marl_plugins.engine.runtime.session import Session


class RunningStep:
    """A `Step` (core/steps.py) of a session.

    Args:
        number: The training step, from 1.
        optimiser_steps: K, of its updates.
        tasks: Those whose turn it is.
    """

    def __init__(
        self,
        session: Session,
        number: int,
        optimiser_steps: int,
        tasks: Sequence[Task],
    ):
        self.session = session
        self.number = number
        self.optimiser_steps = optimiser_steps
        run, plugins = session.plan.run, session.plan.plugins
        self.tasks = chosen_tasks(plugins, run, number, tasks, session.tasks_by_id)
        self.policies: Mapping[str, Any] = session.policies
        self.pools = session.rollout.pools
        self.estimator = session.estimator
        self.trajectories: list[Trajectory] = []
        self.received: list[Trajectory] = []
        """What has entered by `marl_exchange`."""
        self.left_out: Mapping[Trajectory, str] = {}
        """The trajectories of the rollout that have left by it, with the reason."""
        self.ended = asyncio.Event()
        self.seconds: dict[str, float] = {}
        """By phase."""
        self._counts = Counter[int]()
        """Trajectories by place."""
        self.forwarded: list[ForwardedExperience] = []
        self.sampled = SampledActions()
        self._crediting = CreditAssignment(
            run, plugins, session.trained, session.estimator, optimiser_steps, self.sampled
        )
        self.parts: Mapping[str, StepPart] = {
            name: GuardedPart(name, part, number, session, self.sampled)
            for name, part in parts_of(plugins, run, self).items()
        }

    async def roll_out(self, samples: int, tick: Callable[[], None]) -> None:
        """Runs the workflow on all tasks, while the parts work.

        Args:
            samples: Trajectories per task.
            tick: Called when a trajectory has finished.
        """

        async def collect() -> None:
            async with aclosing(arriving_at(self, samples)) as arriving:
                async for trajectory in arriving:
                    self._arrived(trajectory)
                    if not trajectory.forked:
                        self._add_tasks(trajectory.place, samples)
                    tick()
            self.ended.set()

        await all_of([collect(), *(part.during_rollout() for part in self.parts.values())])
        self.trajectories = self.session.rollout.in_order(self.sampled)

    async def trajectory(self, task: Task, place: int, sample: int) -> Trajectory:
        """See `Step.trajectory`."""
        rollout = self.session.rollout
        return await rollout.one(
            task, place, sample, self.number, rollout.score_action, roles=players(self, task, place)
        )

    async def fork(
        self, trajectory: Trajectory, path: str, number: int, words: Generation | None = None
    ) -> Trajectory:
        """See `Step.fork`."""
        rollout, task = self.session.rollout, trajectory.task
        roles = players(self, task, trajectory.place)
        return await fork(
            Original(rollout, trajectory, task, roles),
            path,
            number,
            words,
            score_action=rollout.score_action,
        )

    def put_back(
        self, tasks: Sequence[Task], trajectories: Sequence[Trajectory], parts: Mapping[str, object]
    ) -> None:
        """Takes in a rollout that a saved step has (engine/runtime/waiting.py), in place of
        `roll_out`.

        Args:
            parts: What the parts have recorded of it, by their plugins' labels.
        """
        self.tasks = list(tasks)
        for trajectory in trajectories:
            self._arrived(trajectory)
        labels = self.session.plan.plugins.labels
        for name, part in self.parts.items():
            if labels[name] in parts:
                part.restore(parts[labels[name]])
        self.ended.set()
        self.trajectories = self.session.rollout.in_order(self.sampled)

    def _arrived(self, trajectory: Trajectory) -> None:
        self.sampled.arrived(trajectory)
        self.trajectories.append(trajectory)
        for part in self.parts.values():
            part.arrived(trajectory)

    def _add_tasks(self, place: int, samples: int) -> None:
        """Adds the tasks that parts ask for, if all samples of a place have arrived."""
        self._counts[place] += 1
        if self._counts[place] < samples:
            return
        mine = [t for t in self.trajectories if t.place == place and not t.forked]
        for name, part in self.parts.items():
            more = part.completed(sorted(mine, key=lambda t: t.order))
            check_tasks_of_step(name, HOOK, self.tasks, more, self.session.tasks_by_id)
            self.tasks += more

    async def exchange(self) -> None:
        """Lets plugins take trajectories out of the step and brings others in."""
        plugins, hook = self.session.plan.plugins, "marl_exchange"
        exchange = StepExchange(self.session, self.number, self.tasks, self.trajectories)

        def check(
            plugin: str, trajectories: Sequence[Trajectory], answer: Sequence[Trajectory]
        ) -> None:
            self.sampled.check_exchange(plugin, trajectories, answer, exchange.received)
            kept = set(answer)
            for trajectory in trajectories:
                if (
                    trajectory not in kept
                    and trajectory not in exchange.left
                    and not trajectory.origin
                ):
                    raise RunPaused(
                        f"plugin {plugin}: {hook} removed trajectory {trajectory.name} without a "
                        "reason; call "
                        "exchange.leave_out(trajectory, reason)"
                    )

        answer = await plugins.chain(
            hook, self.trajectories, check, run=self.session.plan.run, exchange=exchange
        )
        kept = set(answer)
        self.received = exchange.entered(answer)
        self.left_out = {t: why for t, why in exchange.left.items() if t not in kept}
        self._crediting.check_leaving(self.left_out)
        for trajectory in self.received:
            self.sampled.arrived(trajectory)
        for trajectory, why in self.left_out.items():
            for action in trajectory.actions:
                action.left_out = why

    async def credited(self, trajectories: Sequence[Trajectory]) -> list[Row] | None:
        """See `Step.credited`."""
        return await self._crediting.early(trajectories)

    async def rows(self) -> list[Row]:
        """Returns the rows of the step, credited and selected."""
        own = [t for t in self.trajectories if t not in self.left_out]
        rows = await self._crediting.rows([*own, *self.received])
        for part in self.parts.values():
            await part.rows(rows)
        return rows

    def ledger(self, rows: Sequence[Row]) -> Ledger:
        """Returns what became of every action, those of the parts' own rows included."""
        ledger = Ledger.of(self.number, self.trajectories, rows, self.sampled.of)
        if self.received:
            ledger.received = Ledger.of(self.number, self.received, rows, self.sampled.of)
        own = (part.ledger() for part in self.parts.values())
        ledger.auxiliary += [one for one in own if one is not None]
        return ledger

    async def prepare(self, rows: Sequence[Row]) -> list[PreparedExperience]:
        """Returns the rows with their tensors by policy, their advantages taken over all policies
        together, as the parts leave them."""
        by_policy: dict[str, list[Row]] = {}
        for row in rows:
            by_policy.setdefault(row.action.policy, []).append(row)
        forwarded: list[ForwardedExperience] = await all_of(
            self.session.trained[name].forward(
                mine, [f for f in self.forwarded if f.policy == name]
            )
            for name, mine in by_policy.items()
        )
        prepared: Sequence[PreparedExperience] = await in_daemon_thread(
            estimate, forwarded, self.estimator
        )
        for part in self.parts.values():
            prepared = await part.prepared(prepared)
        return list(prepared)

    def metrics(self) -> dict[str, float]:
        """Returns the numbers of all parts."""
        metrics: dict[str, float] = {}
        for part in self.parts.values():
            metrics |= part.metrics()
        return metrics


def players(step: RunningStep, task: Task, place: int) -> dict[str, RoleSpec]:
    """Returns every role as it is played on a task of a step: as the session casts it, with its
    policy's share of the limit of new tokens (`AnswerLimits`)."""

    def with_limit(role: RoleSpec, factor: float) -> RoleSpec:
        limit = role.sampling.max_new_tokens or role.sampling.max_len
        return replace(
            role,
            sampling=replace(
                role.sampling, max_new_tokens=min(limit, max(1, round(limit * factor)))
            ),
        )

    factors, cast = (
        step.session.plan.run.state(AnswerLimits),
        step.session.cast(task, step.number, place),
    )
    return {
        name: with_limit(role, factors[role.policy]) if role.policy in factors else role
        for name, role in cast.items()
    }


def arriving_at(step: RunningStep, samples: int) -> AsyncGenerator[Trajectory, None]:
    """Yields the trajectories of a step as they finish: its own rollout's, or those that a part
    gives it.

    Raises:
        RunPaused: Two parts give it theirs.
    """
    sources = {
        name: source for name, part in step.parts.items() if (source := part.source()) is not None
    }
    if len(sources) > 1:
        raise RunPaused(
            f"plugins {' and '.join(sources)}: source of the parts of both gives step "
            f"{step.number} its trajectories"
        )
    for name, source in sources.items():
        return _given(step, name, source)
    return step.session.rollout.train(step.tasks, samples, step.number, partial(players, step))


async def _given(
    step: RunningStep, plugin: str, source: AsyncGenerator[Sequence[Trajectory], None]
) -> AsyncGenerator[Trajectory, None]:
    """Yields what a part gives, whose tasks are the step's then."""
    step.tasks = []
    async with aclosing(source):
        async for group in source:
            check_tasks_of_step(plugin, HOOK, step.tasks, [group[0].task], step.session.tasks_by_id)
            step.tasks.append(group[0].task)
            for trajectory in group:
                trajectory.place = len(step.tasks) - 1
                yield trajectory
