"""Streaming in one training step: who is computed when."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

from marl_plugins import Step, StepPart, Trajectory, all_of

# inside: works in the training processes
from marl_plugins.core.rows import rows_to_be
from marl_plugins.engine.runtime.experience import ForwardedExperience, PreparedExperience
from marl_plugins.streaming.gradients import GradientAccumulation

if TYPE_CHECKING:
    from marl_plugins import PolicyProcesses, Run


class StreamingPart(StepPart):
    """Forward passes, and gradients, of the tasks of a step whose samples have all arrived.

    Args:
        means: As of `GradientAccumulation`.
    """

    def __init__(self, run: Run, step: Step, means: dict[str, float]):
        self.run, self.step, self.options = run, step, run.args.streaming
        self.groups = TaskGroups(
            len(step.tasks), self.options.tasks, run.args.rollout.n_samples_per_prompt
        )
        self.trained = [policy for policy in step.policies.values() if policy.spec.trainable]
        self.arriving: dict[str, asyncio.Queue[list[Trajectory]]] = {
            p.name: asyncio.Queue() for p in self.trained
        }
        self.gradients = GradientAccumulation(step.estimator, step.policies, means)
        self.computed_rows = 0
        self.hidden_rows = 0
        """Rows that were done before the rollout's end."""

    def arrived(self, trajectory: Trajectory) -> None:
        if complete := self.groups.add(trajectory):
            for queue in self.arriving.values():
                queue.put_nowait(complete)

    async def during_rollout(self) -> None:
        await all_of(self._compute(policy) for policy in self.trained)

    async def _compute(self, policy: PolicyProcesses) -> None:
        """Compute one policy's rows, one group of tasks after the other.

        Ranks that were asked in different orders would wait for each other.
        """
        learning = self.options.gradients and self.step.number > policy.args.critic.freezing_steps
        ready: dict[int, ForwardedExperience | None] = {}
        due = 0
        for _ in range(self.groups.count):
            trajectories = await self.arriving[policy.name].get()
            rows = await self.step.credited(trajectories) if learning else None
            if rows is not None:
                self.gradients.note_returns(rows)
                mine = [row for row in rows if row.action.policy == policy.name]
            else:
                mine = rows_to_be(trajectories, policy.name)
            known = cast(ForwardedExperience, await policy.forward(mine)) if mine else None
            if known:
                self.step.forwarded.append(known)
                self.computed_rows += len(mine)
                self.hidden_rows += 0 if self.step.ended.is_set() else len(mine)
            number = trajectories[0].place // self.options.tasks
            ready[number] = known if rows is not None else None
            while due in ready:  # gradients are added in the order of the step
                each = ready.pop(due)
                due += 1
                if each is not None:
                    await self.gradients.add(each)

    async def prepared(
        self, prepared: Sequence[PreparedExperience]
    ) -> Sequence[PreparedExperience]:
        return self.gradients.prepared(prepared)

    def metrics(self) -> dict[str, float]:
        return {
            "streaming/rows": float(self.computed_rows),
            "streaming/hidden": float(self.hidden_rows),
        }


class TaskGroups:
    """Groups of consecutive tasks of a step, and which of their trajectories have arrived.

    Args:
        tasks: Number of tasks in the step.
        size: Tasks of a group.
        samples: Trajectories of a task.
    """

    def __init__(self, tasks: int, size: int, samples: int):
        self.tasks, self.size, self.samples = tasks, size, samples
        self.count = -(-tasks // size)
        self._arrived: dict[int, list[Trajectory]] = defaultdict(list)

    def add(self, trajectory: Trajectory) -> list[Trajectory] | None:
        """Returns the trajectories of the group in the order of the step, if this was its last
        one."""
        number = trajectory.place // self.size
        group = self._arrived[number]
        group.append(trajectory)
        if len(group) < self.samples * min(self.size, self.tasks - number * self.size):
            return None
        return sorted(self._arrived.pop(number), key=lambda t: t.order)
