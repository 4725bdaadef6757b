"""Rollouts: all tasks of a batch and all their samples at once, each an asyncio task, none waiting for another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.core.workflow import (
    Call,
    RoleSpec,
    ScoreAction,
    Seen,
    Tool,
    Workflow,
    checked_score,
    run_workflow,
)
from marl_plugins.manager import Plugins
from marl_plugins.runtime.engines import EnginePool

EVALUATION = -1
"""Stands for the step in an evaluation's seeds."""


class Rollout:
    """Runs the workflow on tasks, through the plugins' hooks.

    Args:
        pools: The engines of each policy.
        run_seed: Part of every request's seed.
        task_seconds: Deadline of one trajectory.
    """

    def __init__(
        self,
        plugins: Plugins,
        workflow: Workflow,
        roles: Mapping[str, RoleSpec],
        tools: Mapping[str, Tool],
        pools: Mapping[str, EnginePool],
        run_seed: int,
        task_seconds: float,
    ):
        self.hook = plugins.hook
        self.workflow = workflow
        self.roles = roles
        self.tools = tools
        self.pools = pools
        self.run_seed = run_seed
        self.task_seconds = task_seconds

    async def train(self, tasks: Sequence[Task], samples: int, step: int, done: Callable[[], None]) -> list[Trajectory]:
        """Trajectories to train on, actions and outcomes scored; in the order of tasks and samples."""
        return await self._all(tasks, samples, step, self.roles, self.score_action, done)

    async def evaluate(
        self, tasks: Sequence[Task], samples: int, temperature: float, done: Callable[[], None]
    ) -> list[Trajectory]:
        """Trajectories to be counted only: outcomes scored by the verifier, no coach calls.

        Their seeds are the same in every evaluation, and other than training's, so that evaluations can be compared in pairs.
        """
        roles = {
            name: replace(role, sampling=replace(role.sampling, temperature=temperature))
            for name, role in self.roles.items()
        }
        return await self._all(tasks, samples, EVALUATION, roles, None, done)

    async def _all(
        self,
        tasks: Sequence[Task],
        samples: int,
        step: int,
        roles: Mapping[str, RoleSpec],
        score_action: ScoreAction | None,
        done: Callable[[], None],
    ) -> list[Trajectory]:
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(self._one(task, sample, step, roles, score_action, done))
                    for task in tasks
                    for sample in range(samples)
                ]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return [r.result() for r in running]

    async def _one(
        self,
        task: Task,
        sample: int,
        step: int,
        roles: Mapping[str, RoleSpec],
        score_action: ScoreAction | None,
        done: Callable[[], None],
    ) -> Trajectory:
        trajectory = await run_workflow(
            self.workflow,
            task,
            sample,
            step=step,
            run_seed=self.run_seed,
            roles=roles,
            tools=self.tools,
            generate=self.generate,
            score_action=score_action,
            last_role=list(roles)[-1],
            seconds=self.task_seconds,
        )
        if not trajectory.infrastructure_failure:
            await self._score_outcome(trajectory)
        done()
        return trajectory

    async def _score_outcome(self, trajectory: Trajectory) -> None:
        """The verifier's score; one that cannot be had loses the trajectory to infrastructure, like any other failure there."""
        if trajectory.agent_failure:
            trajectory.outcome = 0.0
            return
        answer = self.hook.marl_score_outcome(trajectory=trajectory)
        if answer is None:
            return
        try:
            async with asyncio.timeout(self.task_seconds) as deadline:
                trajectory.outcome = checked_score(await answer, "outcome")
        except InfrastructureFailure as failure:
            trajectory.infrastructure_failure, trajectory.detail = failure.kind, str(failure)
        except TimeoutError:
            if not deadline.expired():
                raise
            trajectory.infrastructure_failure = "deadline"
            trajectory.detail = f"its outcome was not scored after {self.task_seconds} s (limits.task_seconds)"

    async def generate(self, call: Call) -> Generation:
        generation: Generation = await self.hook.marl_generate(call=call, engines=self.pools[call.policy])
        return generation

    def score_action(self, action: Action, seen: Seen) -> Awaitable[float | None] | None:
        verdict: Awaitable[float | None] | None = self.hook.marl_score_action(action=action, seen=seen)
        return verdict
