"""One run of a workflow without any model: what roles say and tools answer stands in a script."""

from __future__ import annotations

import asyncio
import copy
import inspect
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import CoroutineType
from typing import Any

from marl_plugins.builtin.rehearsal.traced import Trace, TracedSource
from marl_plugins.core.failures import AgentFailure, InfrastructureFailure
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.loading import users_line
from marl_plugins.core.roles import Call
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Function, Tool, ToolCall
from marl_plugins.core.trajectory import Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workflow import RoleCall, Roles, Workflow, calls_of, run_workflow
from marl_plugins.engine.plan.script import TOOL, FailureText, Script
from marl_plugins.engine.plan.scripted_roles import ScriptedChat, scripted_role, tagged_calls
from marl_plugins.engine.plan.user_code_thread import (
    Capture,
    Failure,
    caught_mistakes,
    failure_of,
    failures_kept,
    run_on_a_loop,
    shared_generators,
)

MAX_ROLE_CALLS = 200
"""A workflow that continues for as long as answers are wrong is left there."""
LONGEST_SECONDS = 3.0
"""Of processor time: a workflow of more than `MAX_ROLE_CALLS` calls that takes longer, because it
shows all that was said, is left there."""
ROLE_SECONDS = 3.0
"""A workflow that waits longer, for whatever it is, is left there."""


@dataclass
class Trial:
    """One run of a workflow, and what it left.

    Args:
        script: What is said.
        most_calls: It is left where the workflow makes more calls of roles.
        going_on: Is called with every answer, where a limit of time is for each of them; None where
            others run on the event loop too, and have their turn before each answer.
        reached: What was executed of the workflow's file.
        trajectory: None where the workflow raised something.
        calls: All calls of roles, in order.
        failures: What it raised.
        answers: By speaker, the number of answers.
        endless: Whether it was still calling roles after as many calls as it may make.
        left_at: Where it waited when it was left after `ROLE_SECONDS`.
        drew: Whether it drew from a random generator that all of the process shares.
        caught: The mistakes among what it raised and caught itself.
    """

    stage: Stage
    script: Script
    reached: Trace
    most_calls: int = MAX_ROLE_CALLS
    going_on: Callable[[], None] | None = None
    begun: float = field(default_factory=time.thread_time)
    chat: ScriptedChat = field(default_factory=ScriptedChat)
    trajectory: Trajectory | None = None
    calls: list[RoleCall] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    answers: Counter[str] = field(default_factory=Counter)
    endless: bool = False
    left_at: str | None = None
    drew: bool = False
    caught: list[Failure] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """Returns whether the workflow raised something, be it that the agents have failed."""
        return self.trajectory is None or self.trajectory.agent_failure is not None

    @property
    def complete(self) -> bool:
        """Returns whether the workflow came to its own end."""
        return self.trajectory is not None and not (
            self.failed or self.trajectory.infrastructure_failure
        )

    async def run(self, task: Task) -> None:
        """Runs the workflow to its end, or to one of the trial's limits."""

        async def watched(task: Task, roles: Roles, tools: Any) -> Any:
            calls = calls_of(roles)
            self.calls = calls.made
            workflow = self.script.workflow or self.stage.workflow
            awaitable = workflow(task, roles, tools)
            if not inspect.isawaitable(awaitable):
                kind = type(awaitable).__name__
                raise InvalidCall(
                    f"run gives {kind} at once; write `async def run(task, roles, tools)`, without "
                    "`yield`",
                    None,
                )
            try:
                returned = await awaitable
            except asyncio.CancelledError as error:
                self.left_at = users_line(error, ())
                raise
            finally:
                misspelt = [failure_of(error, self.stage.file) for error in calls.misspelt]
                self.failures += misspelt
            if self.going_on is not None and not inspect.isawaitable(returned):
                refuse_running_tasks()
            return returned

        run, functions = self.stage.run, self.stage.functions
        chat: Any = self.chat
        self.trajectory = await run_workflow(
            watched,
            task,
            0,
            step=0,
            run_seed=0,
            roles={
                name: replace(
                    spec,
                    chat=chat,
                    tools=tuple(self._tool(tool, functions[tool]) for tool in run.role(name).tools),
                )
                for name, spec in self.stage.roles.items()
            },
            # with the functions that they really have
            tools={
                name: self._tool(name, run.tools[name].functions if name in run.tools else ())
                for name in functions
            },
            generate=self.generate,
            seconds=ROLE_SECONDS,
        )

    async def generate(self, call: Call) -> Generation:
        """Returns an answer at once, so that whatever runs during the workflow has not begun when
        it ends without waiting for it."""
        if self.going_on is None:
            await asyncio.sleep(0)
        number = len(self.chat.texts)
        slow = number >= MAX_ROLE_CALLS and time.thread_time() - self.begun > LONGEST_SECONDS
        if number >= self.most_calls or slow:
            self.endless = True
            raise InfrastructureFailure("rehearsal", f"more than {number} calls")
        if self.going_on is not None:
            self.going_on()
        line = self._line(call.role, number + 1)
        if isinstance(line, FailureText):
            raise AgentFailure("no_answer", f"role {call.role!r} fails in the rehearsal")
        self.chat.texts.append(line or "")
        return Generation((number,), (0.0,), "stop", call.policy, 0)

    def _line(self, speaker: str, number: int) -> str | None:
        nth = self.answers[speaker]
        self.answers[speaker] += 1
        return self.script.line(speaker, nth, number)

    def _tool(self, name: str, functions: tuple[Function, ...] | None) -> Tool:
        async def answer(call: ToolCall) -> ToolResult:
            text = self._line(f"{TOOL}{name}", 0)
            return ToolResult(name, call.text, text or "", ok=not isinstance(text, FailureText))

        return Tool(name, answer, lambda text: [], functions=functions)


class Stage:
    """A workflow with its roles and tools, to be run as often as there are scripts.

    Args:
        run: Tools of its roles of which only the name is known answer to any function.
        file: Named where no line of the workflow's took part in a mistake.
    """

    def __init__(self, run: Run, workflow: Workflow, file: str):
        self.run = run
        self.workflow = workflow
        self.file = file
        self.source = TracedSource.of(workflow)
        names = {*run.tools, *(name for role in run.recipe.roles.values() for name in role.tools)}
        self.functions = {name: _functions(name, run.tools.get(name)) for name in names}
        """What each tool offers to be called by name."""
        chat = ScriptedChat()
        self.roles = {
            name: replace(
                scripted_role(run, name, chat),
                max_turns=config.max_turns,
                endless_tools_fail=config.endless_tools == "fail",
                find_calls=tagged_calls if config.tools else None,
            )
            for name, config in run.recipe.roles.items()
        }

    def play(
        self,
        script: Script,
        task: Task,
        caught: Capture,
        *,
        most_calls: int = MAX_ROLE_CALLS,
    ) -> Trial:
        """Runs the workflow, or the script's, once on a copy of a task.

        Args:
            caught: Of `run_in_thread`.
            most_calls: The trial is left where the workflow makes more calls of roles.
        """
        trial = Trial(self, script, Trace(self.source), most_calls, caught.goes_on)
        before = shared_generators()
        with failures_kept(trial.failures, self.file, caught), trial.reached.watching():
            run_on_a_loop(trial.run(copy.deepcopy(task)))
        trial.drew = shared_generators() != before
        random.setstate(before[0])
        trial.failures += [
            failure_of(call.refused, self.file) for call in trial.calls if call.refused
        ]
        trial.caught = caught_mistakes(trial.reached.raised, trial.failures, self.file)
        return trial

    def play_in_turn(
        self, groups: Sequence[Sequence[tuple[Script, Task]]], caught: Capture
    ) -> list[list[Trial]]:
        """Runs the workflow on the tasks of each group at the same time, as a run does: the tasks
        themselves, on one loop."""
        trials = [
            [Trial(self, script, Trace(self.source)) for script, _ in group] for group in groups
        ]

        async def one(trial: Trial, task: Task) -> None:
            try:
                await trial.run(task)
            except Exception as error:  # the workflow's, of any kind
                trial.failures.append(failure_of(error, self.file))
            caught.goes_on()  # programs may have to wait for each other

        async def all_in_turn() -> None:
            for group, played in zip(trials, groups, strict=True):
                await asyncio.gather(*map(one, group, (task for _, task in played)))

        run_on_a_loop(all_in_turn())
        return trials


def _functions(name: str, tool: Tool | None) -> tuple[Function, ...]:
    """Returns what a role of the rehearsal may call: the tool's functions, or else one of its own
    name."""
    return tuple((tool and tool.functions) or (Function(name, "", {}),))


def refuse_running_tasks() -> None:
    """Raises `InvalidCall` where the workflow has ended and a task of its own still runs that it
    has not cancelled."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    own = [
        task for task in tasks if isinstance(task.get_coro(), RoleCall | CoroutineType)
    ]  # not the loop's: generators to be closed
    running = sorted(
        _place_and_name(task) for task in own if not task.done() and not task.cancelling()
    )
    for place, name in running:
        raise InvalidCall(
            f"{name} runs as a task that nobody awaits when run ends; await it, or cancel it", place
        )


def _place_and_name(task: asyncio.Task[Any]) -> tuple[str, str]:
    coroutine: Any = task.get_coro()
    if isinstance(coroutine, RoleCall):
        return coroutine.place, f"role {coroutine.spec.name!r}"
    code = coroutine.cr_code
    return f"{code.co_filename}:{code.co_firstlineno}", coroutine.__qualname__
