"""Workflows: how roles and tools call each other on one task, as plain async Python.

    async def run(task, roles, tools):
        plan = await roles.solver(problem=task.prompt)
        a, b = await asyncio.gather(roles.critic(plan=plan), roles.coder(problem=task.prompt,
        plan=plan)) return await roles.verifier(plan=plan, criticism=a, code=b)

Calling a role renders its prompt from the fields, generates, and, where the role has tools, runs
the calls that it finds in the answer and continues until there is none or `max_turns` is reached.
What is returned is the role's last `Action`;
`str(action)` is its text. Passing an action as a field, alone or in a list (or naming it in
`after=`), records the dependency. Every call opens a conversation of its own, unless it continues
an earlier one: `roles.player(move=x, continues=mine)`. Parallel, branching and looping workflows
are just Python.
"""

from __future__ import annotations

import asyncio
import inspect
import opcode
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from types import FrameType
from typing import Any, Self

from marl_plugins.core.calls import wanted
from marl_plugins.core.failures import AgentFailure, nearest
from marl_plugins.core.fields import InvalidCall, as_text, listed
from marl_plugins.core.roles import Call, Generate, NotInRecipe, RoleSpec, Sampling
from marl_plugins.core.scoring import ScoreAction
from marl_plugins.core.tools import FunctionCall, RequestedCall, Tool
from marl_plugins.core.trajectory import Action, Task, ToolResult, Trajectory
from marl_plugins.core.trajectory_builder import TrajectoryBuilder
from marl_plugins.core.workspace import Workspace

__all__ = [  # what workflows, and plugins that run or answer them, import from here
    "Call", "Generate", "NotInRecipe", "RoleSpec", "Roles", "Sampling", "Tools", "Workflow",
    "builder_of", "run_workflow",
]  # fmt: skip

Workflow = Callable[..., Awaitable[Any]]
"""`async def run(task, roles, tools)`."""


class RoleCall(Coroutine[Any, Any, Action]):
    """One call of a role. It begins when it is awaited or run as a task, so one that nobody awaits
    can be reported.

    Args:
        answer: Makes the call.
        place: File and line of the call in the workflow.
        notes: What is recorded with each of its actions (`Action.notes`).
    """

    def __init__(
        self,
        answer: Callable[[RoleCall], Coroutine[Any, Any, Action]],
        spec: RoleSpec,
        fields: Mapping[str, Any],
        after: Iterable[Action],
        continues: Action | None,
        place: str,
        notes: Mapping[str, Any] | None = None,
    ):
        self.spec = spec
        self.notes = notes
        self.messages: Sequence[dict[str, str]] | None = None
        """What the role is shown, where that is not made of its prompt and the fields."""
        self.options: Mapping[str, Any] = {}
        """Further arguments of `TrajectoryBuilder.answer`."""
        self.fields = fields
        self.after = after
        self.continues = continues
        self.place = place
        self.shown: dict[str, str] = {}
        """The text of each field when the call began: a list that is given may grow after it."""
        self.action: Action | None = None
        """The role's last action, once the call has been answered."""
        self.refused: InvalidCall | None = None
        """Why it has not been made, whether the workflow lets the exception through or not."""
        self._answer = answer
        self._begun: Coroutine[Any, Any, Action] | None = None

    @property
    def awaited(self) -> bool:
        """Returns whether the call has begun."""
        return self._begun is not None

    def _coroutine(self) -> Coroutine[Any, Any, Action]:
        if self._begun is None:
            self._begun = self._answer(self)
        return self._begun

    def __await__(self) -> Generator[Any, Any, Action]:
        return self._coroutine().__await__()

    def send(self, value: Any) -> Any:
        return self._coroutine().send(value)

    def throw(self, *error: Any) -> Any:
        return self._coroutine().throw(*error)

    def close(self) -> None:
        self._coroutine().close()


class RoleCalls:
    """The calls that one workflow makes of its roles, in order, awaited or not."""

    def __init__(self, builder: TrajectoryBuilder):
        self.builder = builder
        self.made: list[RoleCall] = []
        self.misspelt: list[InvalidCall] = []
        """Names that the workflow reads as `roles.NAME` and the recipe does not have, whatever
        becomes of the exception."""

    @property
    def unawaited(self) -> list[RoleCall]:
        """The calls that have not begun."""
        return [call for call in self.made if not call.awaited]

    def call(
        self,
        role: str,
        fields: Mapping[str, Any],
        after: Iterable[Action],
        continues: Action | None,
        place: str,
        notes: Mapping[str, Any] | None = None,
    ) -> RoleCall:
        """Returns a call of a role, which begins when it is awaited: for `roles.NAME(...)`, and for
        workflows that are no Python.

        Raises:
            KeyError: There is no such role.
        """
        made = RoleCall(
            self.answer, self.builder.roles[role], fields, after, continues, place, notes
        )
        self.made.append(made)
        return made

    def show(
        self,
        role: str,
        messages: Sequence[dict[str, str]],
        *,
        after: Iterable[Action] = (),
        continues: Action | None = None,
        place: str = "",
        notes: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RoleCall:
        """Returns a call of a role that is shown ready messages, for whoever has these in place of
        fields.

        Args:
            options: Further arguments of `TrajectoryBuilder.answer`.

        Raises:
            KeyError: There is no such role.
        """
        words = {"messages": "\n".join(message["content"] for message in messages)}
        made = self.call(role, words, after, continues, place, notes)
        made.messages, made.options = messages, options
        return made

    async def answer(self, call: RoleCall) -> Action:
        """Makes a call.

        Raises:
            InvalidCall: The workflow calls the role wrongly; the call remembers it too.
        """
        try:
            messages, parents = self._shown(call)
            answer = self.builder.answer(
                call.spec.name,
                messages,
                parents=parents,
                continues=call.continues,
                notes=call.notes,
                **call.options,
            )
            call.action = await answer
        except InvalidCall as error:
            call.refused = error if error.place else InvalidCall(error.problem, call.place)
            raise call.refused from None
        return call.action

    def _shown(self, call: RoleCall) -> tuple[list[dict[str, str]], list[Action]]:
        """The messages that a call shows its role, and the actions in its fields and in `after`.

        Raises:
            InvalidCall: A field is missing or cannot be shown, or `after` holds something else than
                actions.
        """
        spec, place = call.spec, call.place
        role = f"role {spec.name!r}"
        texts = call.shown
        shown_actions: list[Action] = []
        self.refuse_unawaited(call.continues, f"{role} was given, in `continues`,", place)
        for action in listed(call.after, role, place):
            self.refuse_unawaited(action, f"{role} was given, in `after`,", place)
            if not isinstance(action, Action):
                raise InvalidCall(
                    f"{role}: after takes a list of actions, got {type(action).__name__} in it",
                    place,
                )
            shown_actions.append(action)
        for name, value in call.fields.items():
            for item in value if isinstance(value, list | tuple) else (value,):
                self.refuse_unawaited(item, f"{role} was given, as {name!r},", place)
            texts[name], actions = as_text(value, f"{role}, field {name!r}", place)
            shown_actions += actions
        if call.messages is not None:
            return [*call.messages], shown_actions
        try:
            if call.continues is None:
                return spec.render(texts), shown_actions
            return (spec.render_next or spec.render)(texts)[-1:], shown_actions
        except KeyError as error:
            raise InvalidCall(
                f"{role} was called with the wrong fields: {error.args[0]}", place
            ) from None

    def refuse_unawaited(self, value: Any, what: str, place: str | None) -> None:
        """Raises `InvalidCall` where a workflow passes on a call itself instead of its answer."""
        if not inspect.isawaitable(value):
            return
        waiting = [value] if isinstance(value, RoleCall) else self.unawaited
        if inspect.iscoroutine(value):
            value.close()  # or Python reports it a second time, as never awaited
        place = waiting[0].place if waiting else place
        raise InvalidCall(f"{what} a call that is not awaited; write `await` before it", place)

    async def refuse_forgotten(self) -> None:
        """Raises `InvalidCall` where the workflow has ended without awaiting one of its calls."""
        if self.unawaited:
            await asyncio.sleep(0)  # those of new tasks begin, or are cancelled
        for call in self.unawaited:
            raise forgotten(call)


class OfOneTrajectory:
    """An object of one trajectory: whoever copies what holds it, as `dataclasses.asdict` does, has
    the same one."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self


class Roles(OfOneTrajectory):
    """The roles of one trajectory, as attributes."""

    def __init__(self, calls: RoleCalls):
        self._calls = calls

    def __getattr__(self, name: str) -> Callable[..., RoleCall]:
        calls, frame = self._calls, sys._getframe(1)
        if name not in calls.builder.roles:
            problem = f"the recipe has no role {name!r}{nearest(name, calls.builder.roles)}"
            if written := _reads_attribute(frame):
                calls.misspelt.append(InvalidCall(problem, _place(frame)))
            raise NotInRecipe(problem, written=written) from None

        def call(
            *nameless: Any,
            after: Sequence[Action] = (),
            continues: Action | None = None,
            **fields: Any,
        ) -> RoleCall:
            place = _place(sys._getframe(1))
            if nameless:
                raise InvalidCall(
                    f"role {name!r} takes its fields by name: roles.{name}(FIELD=...)", place
                )
            return calls.call(name, fields, after, continues, place)

        return call


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _reads_attribute(frame: FrameType) -> bool:
    """Returns whether a frame is at `x.NAME`, and not at `hasattr(x, NAME)` or
    `getattr(x, NAME, DEFAULT)`, which ask."""
    return opcode.opname[frame.f_code.co_code[frame.f_lasti]] in ("LOAD_ATTR", "LOAD_METHOD")


def forgotten(call: RoleCall) -> InvalidCall:
    """Returns the mistake of a call that the workflow does not await."""
    return InvalidCall(
        f"role {call.spec.name!r} is called, and nobody awaits it; write `await` before it",
        call.place,
    )


def calls_of(roles: Roles) -> RoleCalls:
    """Returns all calls that a workflow has made of its roles so far."""
    return roles._calls


def builder_of(roles: Roles) -> TrajectoryBuilder:
    """Returns the builder of a workflow's trajectory, for code that has messages in place of
    fields."""
    return roles._calls.builder


class Tools(OfOneTrajectory):
    """The tools of one trajectory, as attributes: `await tools.python(code)`,
    `await tools.time.convert_time(time=now, ...)`."""

    def __init__(self, builder: TrajectoryBuilder):
        self._builder = builder

    def __getattr__(self, name: str) -> BoundTool:
        try:
            return BoundTool(self._builder, self._builder.tools[name])
        except KeyError:
            problem = f"the recipe has no tool {name!r}{nearest(name, self._builder.tools)}"
            raise NotInRecipe(problem, written=_reads_attribute(sys._getframe(1))) from None


class BoundTool(OfOneTrajectory):
    """A tool of one trajectory: called with a text, or by one of its functions with arguments."""

    def __init__(self, builder: TrajectoryBuilder, tool: Tool):
        self._builder = builder
        self._tool = tool

    def __call__(self, *positional: Any, **named: Any) -> Awaitable[ToolResult]:
        name = self._tool.name

        async def call(text: str) -> ToolResult:
            if not isinstance(text, str):
                kind = type(text).__name__
                raise TypeError(
                    f"tools.{name} takes a text, got {kind}; an action's is str(action)"
                )
            return await self._builder.call_tool(RequestedCall(name, text, self._tool))

        call.__qualname__ = f"tools.{name}"
        return call(*positional, **named)  # what is wrong with them is said of `tools.NAME`

    def __getattr__(self, function: str) -> Callable[..., Awaitable[ToolResult]]:
        tool = self._tool
        if tool.functions is None:
            raise NotInRecipe(f"tool {tool.name!r} has no functions: await tools.{tool.name}(TEXT)")
        if tool.functions and tool.function(function) is None:
            names = [f.name for f in tool.functions]
            raise NotInRecipe(
                f"tool {tool.name!r} has no function {function!r}{nearest(function, names)}"
            )

        async def call(**arguments: Any) -> ToolResult:
            made = FunctionCall(function, arguments)
            known = (
                wanted([tool], made)
                if tool.functions
                else RequestedCall(tool.name, made.text, tool, function=made)
            )
            return await self._builder.call_tool(known)

        call.__qualname__ = f"tools.{tool.name}.{function}"
        return call


async def run_workflow(
    workflow: Workflow,
    task: Task,
    sample: int,
    *,
    step: int,
    run_seed: int,
    roles: Mapping[str, RoleSpec],
    tools: Mapping[str, Tool],
    generate: Generate,
    place: int = 0,
    score_action: ScoreAction | None = None,
    score: Callable[[Trajectory], Awaitable[None]] | None = None,
    workspace: Workspace | None = None,
    last_role: str | None = None,
    seconds: float | None = None,
    rollout: float | None = None,
    origin: str = "",
) -> Trajectory:
    """Runs a workflow on one task and returns its trajectory: finished, failed or lost, never an
    exception of the agents'.

    The arguments are those of `TrajectoryBuilder` and of its `build`.

    Args:
        workflow: `async def run(task, roles, tools)`; what it returns becomes the trajectory's
            answer.

    Raises:
        InvalidCall: The workflow calls a role wrongly, or has ended without awaiting one of its
            calls.
        Exception: Whatever else the recipe's own code raises by mistake; it ends the run.
    """
    builder = TrajectoryBuilder(
        task,
        sample,
        step=step,
        run_seed=run_seed,
        roles=roles,
        tools=tools,
        generate=generate,
        place=place,
        score_action=score_action,
        workspace=workspace,
        last_role=last_role,
        rollout=rollout,
        origin=origin,
    )
    calls = RoleCalls(builder)

    async def work() -> Any:
        try:
            returned = await workflow(task, Roles(calls), Tools(builder))
        except AgentFailure:
            # else the agents may have failed before a call could be awaited
            if not builder.trajectory.actions:
                await calls.refuse_forgotten()
            raise
        calls.refuse_unawaited(returned, "run returns", None)
        await calls.refuse_forgotten()
        await builder.branches.finish()
        return returned

    return await builder.build(work, score=score, seconds=seconds)
