"""Tools, and what they keep of one trajectory: its workspace, their sessions, and the time that
they have taken.

A role's answer -> `RequestedCall` calls (core/calls.py) -> `ToolCall`, as the tool gets it ->
`ToolResult`
"""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure, place_of, while_doing
from marl_plugins.core.trajectory import Action, Task, ToolResult, Trajectory
from marl_plugins.core.workspace import TooManyFiles, Workspace


@dataclass(frozen=True)
class FunctionCall:
    """A call of a function by its name.

    Args:
        arguments: A JSON value; anything but an object is the model's mistake.
    """

    name: str
    arguments: Any

    @property
    def text(self) -> str:
        """The call as one text, for records and for people."""
        return json.dumps({"name": self.name, "arguments": self.arguments}, ensure_ascii=False)


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool, as the tool gets it.

    Args:
        text: What the agent or the workflow wrote.
        function: The function that was called by its name, and its arguments; None where the text
            is all.
        files: Written into the tool's folder first, by their path in it, for a tool that runs
            programs.
        task, sample, step: Whose trajectory it belongs to.
        role, action: The role and the path of the action that made the call; empty when the
            workflow made it.
        turn: Of that action, counted from 0 in its conversation.
        session: What the tool's `open` has given for this trajectory.
        workspace: The trajectory's folder, where the tool works in one.
    """

    text: str
    task: str
    sample: int
    step: int
    role: str = ""
    action: str = ""
    turn: int = 0
    session: Any = None
    workspace: Path | None = None
    function: FunctionCall | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Function:
    """A function that a tool offers to be called by name, with arguments.

    Args:
        name: What the model calls it.
        description: What it does, for the model.
        parameters: JSON schema of the arguments, an object's.
        text: The argument that is the text of the call by itself; empty: the text is
            `{"name": ..., "arguments": {...}}`.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    text: str = ""

    @property
    def schema(self) -> dict[str, Any]:
        """Returns the schema that chat templates and OpenAI's protocol use."""
        described = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": described}


def function_of_text(name: str, description: str, argument: str, about: str) -> Function:
    """Returns the function of a tool whose calls are texts, each the one argument."""
    properties = {argument: {"type": "string", "description": about}}
    parameters = {"type": "object", "properties": properties, "required": [argument]}
    return Function(name, description, parameters, text=argument)


@dataclass(frozen=True)
class Tool:
    """A tool that roles may use.

    Args:
        name: What recipes call it.
        run: Answers one call. Raises `InfrastructureFailure` when the tool itself is down; a call
            that fails through the agent's fault is an answer with `ok=False`.
        find: The calls in an action's text, in order; none ends the role's turn. None for a tool
            that is called by the names of its functions alone.
        message_role: Under which chat role the answer is shown.
        calls_per_answer: Maximum number of calls that are made per answer.
        seconds_per_trajectory: Once a trajectory's calls have taken that long
            (`ToolResult.seconds`), no other one is made.
        open: For a tool with a state per trajectory: `open(task, sample, step)` is entered before
            the first call of a trajectory and left when that has been scored; what it gives is
            `ToolCall.session`.
        in_workspace: Whether calls work in the trajectory's folder. They are then made one after
            the other.
        workspaces: `workspaces(task)` is the folder of one trajectory, an asynchronous context, for
            all tools with `in_workspace`.
        settings: What an answer depends on in addition to the call, as JSON values, such as limits.
        outside: Whether a call may have effects that outlast the trajectory, so that a recorded one
            is not made again for `openrlhf fork` unless asked.
        functions: What it offers by name, for roles with `calls:` and for tools without `find`;
            empty where that is known only once the tool has started (an MCP server's).
    """

    name: str
    run: Callable[[ToolCall], Awaitable[ToolResult]]
    find: Callable[[str], list[str]] | None = None
    message_role: str = "user"
    calls_per_answer: int = 16
    seconds_per_trajectory: float = math.inf
    open: Callable[[str, int, int], AbstractAsyncContextManager[Any]] | None = None
    in_workspace: bool = False
    workspaces: Callable[[Task], AbstractAsyncContextManager[Workspace]] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    functions: tuple[Function, ...] | None = None
    outside: bool = False

    def function(self, name: str) -> Function | None:
        """Returns the function of a name, if the tool offers it."""
        return next((f for f in self.functions or () if f.name == name), None)


@dataclass(frozen=True)
class RequestedCall:
    """One call that an answer, or the workflow, makes.

    Args:
        name: What was called: a tool, or a function that there is not.
        tool: Who answers it; None: nobody, because of the agent's mistake in `refusal`.
        function: The call itself, where a function was called by its name.
    """

    name: str
    text: str
    tool: Tool | None = None
    refusal: str = ""
    function: FunctionCall | None = None


def checked_result(result: object, tool: Tool) -> ToolResult:
    """Returns what a tool's `run` gave, which must be a `ToolResult`.

    Raises:
        TypeError: It is none; the tool has a bug.
    """
    if isinstance(result, ToolResult):
        return result
    raise TypeError(
        f"{place_of(tool.run)}: tool {tool.name!r} gave {type(result).__name__}, expected a "
        "ToolResult of "
        "marl_plugins.core.trajectory: return ToolResult(NAME, call.text, OUTPUT, ok=True)"
    )


class OpenTools:
    """The tools of one trajectory, an asynchronous context that lasts until the trajectory has been
    scored.

    Args:
        workspace: Where tools with `in_workspace` work.
    """

    def __init__(self, trajectory: Trajectory, workspace: Workspace | None = None):
        self._trajectory = trajectory
        self._workspace = workspace
        self._sessions: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._left = AsyncExitStack()
        self._seconds: dict[str, float] = {}

    async def __aenter__(self) -> OpenTools:
        return self

    async def __aexit__(self, *error: Any) -> None:
        self._trajectory.workspace = None
        await self._left.__aexit__(*error)

    async def run(
        self, calls: Sequence[RequestedCall], action: Action | None = None
    ) -> tuple[ToolResult, ...]:
        """Returns the results of the calls of one answer, or of the workflow, made in turn; in
        place of all that are beyond a tool's limits, one that says so. Each is kept with the
        action, or else with the trajectory, once it is there.

        The limits keep the agents' own calls from the trajectory's deadline, past which it counts
        as lost to infrastructure.
        """
        results: list[ToolResult] = []
        asked = Counter(call.tool.name if call.tool else "" for call in calls)
        made: Counter[str] = Counter()
        exhausted: set[str] = set()
        for call in calls:
            name = call.tool.name if call.tool else ""
            if name in exhausted:
                continue
            if why := self._limit(call.tool, made[name]):
                exhausted.add(name)
                of = f"{asked[name]} calls" + (f" of {name}" if name else " that cannot be made")
                left_out = f"{asked[name] - made[name]} of {of} were not run: {why}"
                results.append(
                    self._kept(ToolResult(call.name, call.text, left_out, ok=False), action)
                )
                continue
            made[name] += 1
            if call.tool is None:
                results.append(
                    self._kept(ToolResult(call.name, call.text, call.refusal, ok=False), action)
                )
                continue
            results.append(await self._timed(call.tool, call, action))
            # other branches add to it meanwhile
            self._seconds[name] = self._seconds.get(name, 0.0) + results[-1].seconds
        return tuple(results)

    def _limit(self, tool: Tool | None, made: int) -> str:
        """Returns why a tool is called no more after so many calls of one answer; empty where it
        is."""
        if made >= (tool.calls_per_answer if tool else Tool.calls_per_answer):
            return f"at most {made} per answer are"
        taken = self._seconds.get(tool.name, 0.0) if tool else 0.0
        if tool and taken >= tool.seconds_per_trajectory:
            return (
                f"this trajectory's calls have taken {taken:.0f} s of "
                f"{tool.seconds_per_trajectory:g} s"
            )
        return ""

    def _kept(self, result: ToolResult, action: Action | None) -> ToolResult:
        caller = action or self._trajectory
        caller.tool_results = (*caller.tool_results, result)
        return result

    async def _timed(self, tool: Tool, request: RequestedCall, action: Action | None) -> ToolResult:
        """Makes a call, and keeps its result, also where it is lost."""
        start = self._trajectory.now()
        try:
            with while_doing(lambda: self._by(tool, request, action)):
                result = checked_result(await self._run(tool, request, action), tool)
        except (InfrastructureFailure, asyncio.CancelledError) as error:
            kind = error.kind if isinstance(error, InfrastructureFailure) else "cancelled"
            took = self._trajectory.now() - start
            self._kept(
                ToolResult(
                    tool.name, request.text, str(error), False, took, start=start, failure=kind
                ),
                action,
            )
            raise
        return self._kept(
            replace(result, start=start, seconds=result.seconds or self._trajectory.now() - start),
            action,
        )

    def _by(self, tool: Tool, request: RequestedCall, action: Action | None) -> str:
        caller = f"role {action.role!r}" if action else "the workflow"
        text = (
            f"{place_of(tool.run)}: tool {tool.name!r}, which {caller} called on task "
            f"{self._trajectory.task.id!r}"
        )
        return f"by {text} with {request.text!r:.200}"

    async def _run(self, tool: Tool, request: RequestedCall, action: Action | None) -> ToolResult:
        t = self._trajectory
        call = ToolCall(request.text, t.task.id, t.sample, t.step, function=request.function)
        if action is not None:
            call = replace(call, role=action.role, action=action.path, turn=action.turn)
        if tool.open is not None:
            call = replace(call, session=await self._session(tool))
        if tool.in_workspace and self._workspace is not None:
            return await self._run_in(self._workspace, tool, call)
        return await tool.run(call)

    async def _session(self, tool: Tool) -> Any:
        assert tool.open is not None
        async with self._opening:  # branches may need it at the same time
            if tool.name not in self._sessions:
                t = self._trajectory
                self._sessions[tool.name] = await self._left.enter_async_context(
                    tool.open(t.task.id, t.sample, t.step)
                )
        return self._sessions[tool.name]

    async def _run_in(self, workspace: Workspace, tool: Tool, call: ToolCall) -> ToolResult:
        """Makes a call in the trajectory's folder, and notes which files it has written."""
        async with workspace.turn:
            self._trajectory.workspace = await workspace.opened()
            try:
                result = checked_result(
                    await tool.run(replace(call, workspace=self._trajectory.workspace)), tool
                )
            except asyncio.CancelledError:  # what it has left is its own, and not the next call's
                with suppress(TooManyFiles, InfrastructureFailure):
                    await workspace.note(call.action)
                raise
            try:
                written = await workspace.note(call.action)
            except TooManyFiles as error:
                return replace(
                    result, ok=False, output=f"{result.output}\n{error}".lstrip("\n"), files=()
                )
            self._trajectory.files = workspace.files
            return replace(result, files=written)
