"""Rollouts: all tasks of a batch and all their samples at once, each an asyncio task, none waiting
for another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager
from dataclasses import replace

from marl_plugins.core.processes import Engines
from marl_plugins.core.roles import Call, Generate, RoleSpec
from marl_plugins.core.run import Run
from marl_plugins.core.scoring import Outcome, ScoreAction, Seen, score_outcome
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import EVALUATION, Action, Generation, Task, Trajectory
from marl_plugins.core.workflow import Workflow, run_workflow
from marl_plugins.core.workspace import Workspace
from marl_plugins.engine.hook_faults import no_exit
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.runtime.roles import Cast

Players = Callable[[Task, int], Mapping[str, RoleSpec]]
"""Returns who plays on a task at its place."""


class Rollout:
    """Runs the workflow on tasks, through the plugins' hooks.

    Args:
        cast: Is asked who plays each role in every trajectory.
        pools: The engines of each policy.
    """

    def __init__(
        self,
        run: Run,
        plugins: Plugins,
        workflow: Workflow,
        cast: Cast,
        tools: Mapping[str, Tool],
        pools: Mapping[str, Engines],
    ):
        self.run = run
        self.hook = plugins.hook
        self.workflow = workflow
        self.cast = cast
        self.tools = tools
        self.pools = pools
        self.task_seconds = run.recipe.limits.task_seconds

    def train(
        self, tasks: Sequence[Task], samples: int, step: int, roles: Players | None = None
    ) -> AsyncGenerator[Trajectory, None]:
        """Yields trajectories to train on, actions and outcomes scored, as they finish.

        Args:
            tasks: What is appended before the last trajectory is taken is rolled out too.
            roles: Who plays on a task at its place; default: those whose turn it is.
        """
        return self._all(tasks, samples, step, self.score_action, roles)

    def evaluate(
        self, tasks: Sequence[Task], samples: int, temperature: float
    ) -> AsyncGenerator[Trajectory, None]:
        """Yields the trajectories that are only counted, as they finish: outcomes scored by the
        verifier, no coach calls.

        Their seeds are the same in every evaluation, and other than training's, so that evaluations
        can be compared in pairs.
        """

        def roles(task: Task, place: int) -> Mapping[str, RoleSpec]:
            return self.evaluated(task, place, temperature)

        return self._all(tasks, samples, EVALUATION, None, roles)

    def evaluated(self, task: Task, place: int, temperature: float) -> dict[str, RoleSpec]:
        """Returns every role as an evaluation plays it on a task."""
        return {
            name: replace(role, sampling=replace(role.sampling, temperature=temperature))
            for name, role in self.cast(task, EVALUATION, place).items()
        }

    @staticmethod
    def in_order(trajectories: Iterable[Trajectory]) -> list[Trajectory]:
        """Returns trajectories in the order of tasks and samples, whenever they finished."""
        return sorted(trajectories, key=lambda t: t.order)

    async def _all(
        self,
        tasks: Sequence[Task],
        samples: int,
        step: int,
        score_action: ScoreAction | None,
        roles: Players | None,
    ) -> AsyncGenerator[Trajectory, None]:
        finished: asyncio.Queue[asyncio.Task[Trajectory]] = asyncio.Queue()
        began = time.monotonic()
        running: list[asyncio.Task[Trajectory]] = []

        def begin() -> None:
            for place in range(len(running) // samples, len(tasks)):
                players = roles(tasks[place], place) if roles else None
                for sample in range(samples):
                    one = self.one(tasks[place], place, sample, step, score_action, players, began)
                    running.append(asyncio.create_task(one))
                    running[-1].add_done_callback(finished.put_nowait)

        try:
            begin()
            for _ in running:  # which grows
                yield (await finished.get()).result()
                begin()
        finally:
            for work in running:
                work.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def one(
        self,
        task: Task,
        place: int,
        sample: int,
        step: int,
        score_action: ScoreAction | None,
        roles: Mapping[str, RoleSpec] | None = None,
        began: float | None = None,
        generate: Generate | None = None,
        origin: str = "",
        scored: bool = True,
    ) -> Trajectory:
        """Runs the workflow on a task and returns the trajectory, scored.

        Args:
            place, sample, step: As in `Trajectory`.
            score_action: None: actions are not scored.
            roles: Who plays; default: those whose turn it is.
            began: When the step's rollout began, by `time.monotonic`; default: now.
            generate: Answers in place of the engines, with words of `origin`.
            scored: Whether it has an outcome, by the run's graders.
        """
        players = self.cast(task, step, place) if roles is None else roles

        async def score(trajectory: Trajectory) -> None:
            await score_outcome(trajectory, self.score_outcome, self.task_seconds, players)

        with no_exit():
            async with self.workspace_of(task) as workspace:
                return await run_workflow(
                    self.workflow,
                    task,
                    sample,
                    place=place,
                    step=step,
                    run_seed=self.run.args.train.seed,
                    roles=players,
                    tools=self.tools,
                    generate=generate or self.generate,
                    score_action=score_action,
                    score=score if scored else None,
                    workspace=workspace,
                    last_role=list(players)[-1],
                    seconds=self.task_seconds,
                    rollout=began,
                    origin=origin,
                )

    @asynccontextmanager
    async def workspace_of(self, task: Task) -> AsyncIterator[Workspace | None]:
        """Opens a trajectory's folder, if any tool works in one."""
        if any(tool.in_workspace for tool in self.tools.values()):
            async with next(tool.workspaces for tool in self.tools.values() if tool.workspaces)(
                task
            ) as workspace:
                yield workspace
        else:
            yield None

    async def generate(self, call: Call) -> Generation:
        """Answers a request of a role, or of a plugin, by `marl_generate`; built in is the least
        loaded engine (routing.py)."""
        generation: Generation = await self.hook.marl_generate(
            run=self.run, call=call, engines=self.pools[call.policy]
        )
        return generation

    def score_action(self, action: Action, seen: Seen) -> Awaitable[float | None] | None:
        verdict: Awaitable[float | None] | None = self.hook.marl_score_action(
            run=self.run, action=action, seen=seen
        )
        return verdict

    def score_outcome(self, trajectory: Trajectory) -> Awaitable[Outcome] | None:
        verdict: Awaitable[Outcome] | None = self.hook.marl_score_outcome(
            run=self.run, trajectory=trajectory
        )
        return verdict
