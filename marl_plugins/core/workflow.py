"""Workflows: how roles and tools call each other on one task, as plain async Python.

    async def run(task, roles, tools):
        plan = await roles.solver(problem=task.prompt)
        a, b = await asyncio.gather(roles.critic(plan=plan), roles.coder(problem=task.prompt, plan=plan))
        return await roles.verifier(plan=plan, criticism=a, code=b)

Calling a role renders its prompt from the fields, generates, and, where the role has tools, runs the calls that it finds
in the answer and continues until there is none or `max_turns` is reached. What is returned is the role's last `Action`;
`str(action)` is its text. Passing an action as a field, alone or in a list (or naming it in `after=`), records the dependency.
Every call opens a conversation of its own, unless it continues an earlier one: `roles.player(move=x, continues=mine)`.
Parallel, branching and looping workflows are just Python.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.calls import FindCalls, FunctionCall, calls_in, wanted
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import AgentFailure, InfrastructureFailure, RunEnded, leaves_of, nearest
from marl_plugins.core.fields import Miscalled, as_text, listed
from marl_plugins.core.scoring import ScoreAction, Scoring
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.tools import OpenTools, Tool, Wanted, Workspace
from marl_plugins.core.trajectory import Action, Generation, Task, ToolResult, Trajectory, action_path


@dataclass(frozen=True)
class Sampling:
    """How a policy is sampled: temperature, nucleus mass, and the limits in tokens."""

    temperature: float
    top_p: float
    max_new_tokens: int | None
    max_len: int
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class Call:
    """One request to an engine, as `marl_generate` gets it.

    Args:
        policy: Whose engine has to answer.
        context_ids: The exact prompt.
        max_tokens: Maximum number of new tokens.
        seed: Derived from (run seed, step, task, sample, action path).
        role, task, sample, path, step: What the request is for; empty in a plugin's question (`run.ask`), which belongs to no
            action, and whose seed is derived from the run's and what is asked.
    """

    policy: str
    context_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    seed: int
    role: str
    task: str
    sample: int
    path: str
    step: int
    place: int = -1
    """The task's place in its step or evaluation: what waits for an engine is answered in this order. A question is before all
    tasks, because it is asked about an action that has been made."""


@dataclass(frozen=True)
class RoleSpec:
    """A role, ready to be called: its policy, its prompt, its limits."""

    name: str
    policy: str
    render: Callable[[Mapping[str, str]], list[dict[str, str]]]
    """Fields to opening messages. Raises `KeyError` for a field that the prompt requires and the call does not give."""
    chat: ChatFormat
    sampling: Sampling
    tools: tuple[Tool, ...] = ()
    max_turns: int = 1
    render_next: Callable[[Mapping[str, str]], list[dict[str, str]]] | None = None
    """Fields to the message of a call that continues a conversation; None: the last of the opening messages."""
    endless_tools_fail: bool = True
    """Whether a tool call in the last of several turns is an agent failure; otherwise the workflow continues with that action."""
    find_calls: FindCalls | None = None
    """Finds calls in the model's own format; None: by the syntax of each tool."""

    def answers(self, results: Sequence[ToolResult]) -> list[dict[str, str]]:
        """What tools answered as the next messages: one each in the model's own format, else one for all."""
        if self.find_calls is not None:
            return [{"role": "tool", "content": result.output} for result in results]
        called = [tool for tool in self.tools if tool.name == results[0].tool]
        role = (called or self.tools)[0].message_role if self.tools else "user"
        return [{"role": role, "content": "\n".join(result.output for result in results)}]


class NotInRecipe(AttributeError):
    """A workflow uses a role or a tool that the recipe does not have."""


Generate = Callable[[Call], Awaitable[Generation]]
Workflow = Callable[..., Awaitable[Any]]


class RoleCall(Coroutine[Any, Any, Action]):
    """One call of a role. It begins when it is awaited or run as a task, so one that nobody awaits can be reported.

    Args:
        answer: Makes the call.
        place: File and line of the call in the workflow.
    """

    def __init__(
        self,
        answer: Callable[[RoleCall], Coroutine[Any, Any, Action]],
        spec: RoleSpec,
        fields: Mapping[str, Any],
        after: Iterable[Action],
        continues: Action | None,
        place: str,
    ):
        self.spec = spec
        self.fields = fields
        self.after = after
        self.continues = continues
        self.place = place
        self.action: Action | None = None
        """The role's last action, once the call has been answered."""
        self.refused: Miscalled | None = None
        """Why it has not been made, whether the workflow lets the exception through or not."""
        self._answer = answer
        self._begun: Coroutine[Any, Any, Action] | None = None

    @property
    def awaited(self) -> bool:
        """Whether the call has begun."""
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


class Roles:
    """The roles of one trajectory, as attributes."""

    def __init__(self, trajectory: _InProgress, specs: Mapping[str, RoleSpec]):
        self._trajectory = trajectory
        self._specs = specs

    def __getattr__(self, name: str) -> Callable[..., RoleCall]:
        try:
            spec = self._specs[name]
        except KeyError:
            raise NotInRecipe(f"the recipe has no role {name!r}{nearest(name, self._specs)}") from None

        def call(*nameless: Any, after: Sequence[Action] = (), continues: Action | None = None, **fields: Any) -> RoleCall:
            frame = sys._getframe(1)
            place = f"{frame.f_code.co_filename}:{frame.f_lineno}"
            if nameless:
                raise Miscalled(f"role {name!r} takes its fields by name: roles.{name}(FIELD=...)", place)
            made = RoleCall(self._trajectory.call_role, spec, fields, after, continues, place)
            self._trajectory.calls.append(made)
            return made

        return call


def calls_of(roles: Roles) -> list[RoleCall]:
    """All calls that a workflow has made of its roles so far, awaited or not."""
    return roles._trajectory.calls


class Tools:
    """The tools of one trajectory, as attributes: `await tools.python(code)`, `await tools.time.convert_time(time=now, ...)`."""

    def __init__(self, trajectory: _InProgress, tools: Mapping[str, Tool]):
        self._trajectory = trajectory
        self._tools = tools

    def __getattr__(self, name: str) -> BoundTool:
        try:
            return BoundTool(self._trajectory, self._tools[name])
        except KeyError:
            raise NotInRecipe(f"the recipe has no tool {name!r}{nearest(name, self._tools)}") from None


class BoundTool:
    """A tool of one trajectory: called with a text, or by one of its functions with arguments."""

    def __init__(self, trajectory: _InProgress, tool: Tool):
        self._trajectory = trajectory
        self._tool = tool

    def __call__(self, *given: Any, **named: Any) -> Awaitable[ToolResult]:
        name = self._tool.name

        async def call(text: str) -> ToolResult:
            if not isinstance(text, str):
                kind = type(text).__name__
                raise TypeError(f"tools.{name} takes a text, got {kind}; an action's is str(action)")
            return await self._trajectory.call_tool(Wanted(name, text, self._tool))

        call.__qualname__ = f"tools.{name}"
        return call(*given, **named)  # what is wrong with them is said of `tools.NAME`

    def __getattr__(self, function: str) -> Callable[..., Awaitable[ToolResult]]:
        tool = self._tool
        if tool.functions is None:
            raise NotInRecipe(f"tool {tool.name!r} has no functions: await tools.{tool.name}(TEXT)")
        if tool.functions and tool.function(function) is None:
            names = [f.name for f in tool.functions]
            raise NotInRecipe(f"tool {tool.name!r} has no function {function!r}{nearest(function, names)}")

        async def call(**arguments: Any) -> ToolResult:
            made = FunctionCall(function, arguments)
            known = wanted([tool], made) if tool.functions else Wanted(tool.name, made.text, tool)
            return await self._trajectory.call_tool(known)

        call.__qualname__ = f"tools.{tool.name}.{function}"
        return call


@dataclass(frozen=True)
class Turn:
    """What the next turn of a conversation is shown, see `Action`; `context` is all of it."""

    number: int
    before: Action | None
    call: int
    shown: tuple[tuple[str, str], ...]
    shown_ids: tuple[int, ...]
    context: tuple[int, ...]
    extends: bool = True


def next_turn(chat: ChatFormat, before: Action | None, messages: Sequence[dict[str, str]], call: int) -> Turn:
    """The turn that begins with some messages.

    Args:
        before: The conversation's last turn, which the messages follow; None: they open a conversation.
        call: Number of the call in its conversation.
    """
    shown = tuple((m["role"], m["content"]) for m in messages)
    if before is None:
        context = chat.opening(messages)
        return Turn(0, None, call, shown, context, context)
    number = before.turn + 1
    history = said_so_far(chat, before)
    if not chat.keeps(history, messages):
        context = chat.opening([*history, *messages])
        return Turn(number, before, call, shown, context, context, extends=False)
    ids = chat.continuation(before.generation.ids, messages)
    return Turn(number, before, call, shown, ids, (*before.context_ids, *before.generation.ids, *ids))


def said_so_far(chat: ChatFormat, last: Action) -> list[dict[str, str]]:
    """The messages of a conversation up to a turn, that included, as a chat template takes them."""
    turns = [last]
    while turns[-1].before is not None:
        turns.append(turns[-1].before)
    messages: list[dict[str, str]] = []
    for turn in reversed(turns):
        messages += [{"role": role, "content": content} for role, content in turn.shown]
        messages.append({"role": "assistant", "content": chat.said(turn.generation.ids)})
    return messages


class _InProgress:
    """One trajectory while its workflow runs."""

    def __init__(self, trajectory: Trajectory, run_seed: int, generate: Generate, scoring: Scoring, tools: OpenTools):
        self.trajectory = trajectory
        self.tools = tools
        self.run_seed = run_seed
        self.generate = generate
        self.scoring = scoring
        self.branches: set[asyncio.Task[Any]] = set()
        self.calls: list[RoleCall] = []
        self.taken: set[str] = set()
        self.ended = False

    def enter(self) -> None:
        """Every call of a role or a tool begins here: note which branch of the workflow makes it.

        A branch that slept through the end of its trajectory finds it closed, and is cancelled.
        """
        if self.ended:
            raise asyncio.CancelledError("this trajectory has ended")
        branch = asyncio.current_task()
        assert branch is not None
        self.branches.add(branch)

    async def call_tool(self, call: Wanted) -> ToolResult:
        self.enter()
        (result,) = await self.tools.run([call])
        return result

    async def call_role(self, call: RoleCall) -> Action:
        self.enter()
        try:
            messages, parents = self._given(call)
        except Miscalled as error:
            call.refused = error
            raise
        call.action = await self._converse(call.spec, messages, parents, call.continues)
        return call.action

    def _given(self, call: RoleCall) -> tuple[list[dict[str, str]], tuple[str, ...]]:
        """What a call shows its role, and the paths of the actions in its fields and in `after`.

        Raises:
            Miscalled: A field is missing or cannot be shown, `after` holds something else than actions, or `continues` is no
                action of the role in this trajectory.
        """
        role, place = f"role {call.spec.name!r}", call.place
        texts: dict[str, str] = {}
        given: list[Action] = []
        if call.continues is not None:
            self._check_continues(call)
            given.append(call.continues)
        for action in listed(call.after, role, place):
            self.refuse_unawaited(action, f"{role} was given, in `after`,", place)
            if not isinstance(action, Action):
                raise Miscalled(f"{role}: after takes a list of actions, got {type(action).__name__} in it", place)
            given.append(action)
        for name, value in call.fields.items():
            for item in value if isinstance(value, list | tuple) else (value,):
                self.refuse_unawaited(item, f"{role} was given, as {name!r},", place)
            texts[name], actions = as_text(value, f"{role}, field {name!r}", place)
            given += actions
        spec = call.spec
        try:
            messages = (spec.render_next or spec.render)(texts) if call.continues else spec.render(texts)
        except KeyError as error:
            raise Miscalled(f"{role} was called with the wrong fields: {error.args[0]}", place) from None
        return messages[-1:] if call.continues else messages, tuple(dict.fromkeys(action.path for action in given))

    def _check_continues(self, call: RoleCall) -> None:
        role, place, action = f"role {call.spec.name!r}", call.place, call.continues
        self.refuse_unawaited(action, f"{role} was given, in `continues`,", place)
        if not isinstance(action, Action):
            raise Miscalled(f"{role}: continues takes an action of the role, got {type(action).__name__}", place)
        if not any(action is own for own in self.trajectory.actions):
            raise Miscalled(f"{role}: continues takes an action of this trajectory, got one of another", place)
        if action.role != call.spec.name:
            raise Miscalled(
                f"{role} cannot continue a conversation of role {action.role!r}; give that action as a field, and in "
                f"`continues` the last action of {role} itself",
                place,
            )

    def refuse_unawaited(self, value: Any, what: str, place: str | None) -> None:
        """Raise `Miscalled` where a workflow passes on a call itself instead of its answer."""
        if not inspect.isawaitable(value):
            return
        waiting = [value] if isinstance(value, RoleCall) else self.unawaited()
        if inspect.iscoroutine(value):
            value.close()  # or Python reports it a second time, as never awaited
        place = waiting[0].place if waiting else place
        raise Miscalled(f"{what} a call that is not awaited; write `await` before it", place)

    async def refuse_forgotten(self) -> None:
        """Raise `Miscalled` where the workflow has ended without awaiting one of its calls."""
        if self.unawaited():
            await asyncio.sleep(0)  # those of new tasks begin, or are cancelled
        for call in self.unawaited():
            raise Miscalled(f"role {call.spec.name!r} is called, and nobody awaits it; write `await` before it", call.place)

    def unawaited(self) -> list[RoleCall]:
        """The calls that have not begun."""
        return [call for call in self.calls if not call.awaited]

    async def _converse(
        self, spec: RoleSpec, messages: list[dict[str, str]], parents: tuple[str, ...], continues: Action | None
    ) -> Action:
        """The role's turns, to the last action."""
        before, call = continues, continues.call + 1 if continues else 0
        for number in range(spec.max_turns):
            action = await self._act(spec, next_turn(spec.chat, before, messages, call), parents)
            calls = (
                calls_in(spec.tools, spec.find_calls, action.text, spec.chat.said(action.generation.ids))
                if spec.tools
                else []
            )
            try:
                await self.tools.run(calls, action)
            finally:
                action.end = self.trajectory.now()
            self.scoring.acted(action)
            before = action
            if not calls:
                return action
            if number + 1 == spec.max_turns:
                break
            messages = spec.answers(action.tool_results)
            parents = (action.path,)
        assert before is not None
        if spec.max_turns > 1 and spec.endless_tools_fail:
            raise AgentFailure(
                "endless_tool_calls", f"role {spec.name!r} still called a tool in its last turn of {spec.max_turns}"
            )
        return before

    async def _act(self, spec: RoleSpec, turn: Turn, parents: tuple[str, ...]) -> Action:
        t, context, room = self.trajectory, turn.context, room_after(spec, turn)
        path = action_path(spec.name, parents, context, self.taken)
        self.taken.add(path)
        limit = spec.sampling.max_new_tokens
        start = t.now()
        generation = await self.generate(
            Call(
                policy=spec.policy,
                context_ids=context,
                sampling=spec.sampling,
                max_tokens=room if limit is None else min(limit, room),
                seed=derive_seed(self.run_seed, t.step, t.task.id, t.sample, path),
                role=spec.name,
                task=t.task.id,
                sample=t.sample,
                path=path,
                step=t.step,
                place=t.place,
            )
        )
        action = Action(
            path=path,
            role=spec.name,
            policy=spec.policy,
            turn=turn.number,
            shown_ids=turn.shown_ids,
            generation=generation,
            text=spec.chat.text(generation.ids),
            shown=turn.shown,
            before=turn.before,
            call=turn.call,
            extends=turn.extends,
            offered=json.dumps(spec.chat.tools) if spec.find_calls and turn.before is None else "",
            parents=parents,
            start=start,
            answered=t.now(),
        )
        self.trajectory.actions.append(action)
        return action

    async def settle(self, main: asyncio.Task[Any] | None) -> None:
        """After an agent failure in one branch: let the other branches run to their own end.

        Cancelling them would make it a matter of timing which of their actions exist.
        """
        running = [b for b in self.branches if b is not main and not b.done()]  # earlier failures: the workflow's to handle
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, AgentFailure | asyncio.CancelledError):
                raise result

    async def cancel(self, main: asyncio.Task[Any] | None) -> None:
        """End everything that still runs for the trajectory."""
        self.ended = True
        mine = [t for t in (*self.branches, *self.scoring.running) if t is not main]
        for task in mine:
            task.cancel()
        # Finished ones are awaited too, or asyncio logs their exceptions as never retrieved.
        await asyncio.gather(*mine, return_exceptions=True)


def room_after(spec: RoleSpec, turn: Turn) -> int:
    """How many tokens a role may answer in a turn.

    Raises:
        AgentFailure: None.
    """
    length, most = len(turn.context), spec.sampling.max_len
    if length >= most:
        raise AgentFailure(
            "context",
            f"role {spec.name!r}, turn {turn.number + 1}: a context of {length} tokens leaves no room in {most} (--data.max_len)",
        )
    return most - length


def agent_failure_in(error: AgentFailure | BaseExceptionGroup[BaseException]) -> AgentFailure:
    """The agents' failure, also out of the group that an `asyncio.TaskGroup` of the workflow makes of it.

    Raises:
        RunEnded: The group holds one; nothing else counts then.
        InfrastructureFailure: The group holds one; it counts before the agents' failures.
        BaseExceptionGroup: The group holds something else: a bug of the recipe.
    """
    if isinstance(error, AgentFailure):
        return error
    _, bugs = error.split((RunEnded, AgentFailure, InfrastructureFailure, asyncio.CancelledError))
    if bugs is not None:
        raise error
    leaves = list(leaves_of(error))
    for kind in (RunEnded, InfrastructureFailure, AgentFailure):
        for leaf in leaves:
            if isinstance(leaf, kind):
                if isinstance(leaf, AgentFailure):
                    return leaf
                raise leaf
    raise error


async def run_workflow(
    workflow: Workflow,
    task: Task,
    sample: int,
    *,
    place: int = 0,
    step: int,
    run_seed: int,
    roles: Mapping[str, RoleSpec],
    tools: Mapping[str, Tool],
    generate: Generate,
    score_action: ScoreAction | None = None,
    score: Callable[[Trajectory], Awaitable[None]] | None = None,
    workspace: Workspace | None = None,
    last_role: str | None = None,
    seconds: float | None = None,
    rollout: float | None = None,
) -> Trajectory:
    """Run a workflow on one task and return its trajectory: finished, failed or lost, never an exception of the agents'.

    Args:
        workflow: `async def run(task, roles, tools)`; what it returns becomes the trajectory's answer.
        sample: Index among the samples of the task.
        place: The task's place among those that run at the same time.
        step, run_seed: Part of every request's seed.
        score: Gives the finished trajectory its outcome, while its workspace and its tools' sessions are there.
        workspace: Where tools with `in_workspace` work; whoever opened it closes it.
        last_role: The role whose last action is scored with the label.
        seconds: Deadline of the agents' work; past it the trajectory is lost to infrastructure (`deadline`), because the agents
            themselves are bounded by turns, tokens and their tools' limits. Scores that are outstanding then have the same time
            again.
        rollout: When the step's rollout began, by `time.monotonic`; default: now.

    Raises:
        Miscalled: The workflow calls a role wrongly, or has ended without awaiting one of its calls.
        Exception: Whatever else the recipe's own code raises by mistake; it ends the run.
    """
    trajectory = Trajectory(task=task, sample=sample, step=step, place=place)
    if rollout is not None:
        trajectory.rollout, trajectory.start = rollout, time.monotonic() - rollout
    scoring = Scoring(trajectory, score_action, last_role)
    main = asyncio.current_task()
    async with OpenTools(trajectory, workspace) as opened:
        running = _InProgress(trajectory, run_seed, generate, scoring, opened)
        try:
            async with trajectory.lost_after(seconds, "not finished"):
                try:
                    returned = await workflow(task, Roles(running, roles), Tools(running, tools))
                    running.refuse_unawaited(returned, "run returns", None)
                    await running.refuse_forgotten()
                    trajectory.answer = None if returned is None else as_text(returned, "what run returns", None)[0]
                    trajectory.returned = returned.path if isinstance(returned, Action) else None
                except (AgentFailure, BaseExceptionGroup) as error:
                    failure = agent_failure_in(error)
                    trajectory.agent_failure, trajectory.detail = failure.kind, str(failure)
                    await running.settle(main)
            if not trajectory.infrastructure_failure:
                scoring.ended()
                await scoring.finish(seconds)
        finally:
            await running.cancel(main)
        trajectory.seconds = trajectory.now() - trajectory.start
        trajectory.sort()
        if score is not None:
            await score(trajectory)
    return trajectory
