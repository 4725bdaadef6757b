"""Builds one trajectory from what its roles are shown, whoever drives them: a workflow, a graph, a
server's handlers.

    builder = TrajectoryBuilder(task, sample, step=3, run_seed=11, roles=specs, tools=tools,
    generate=generate)

    async def work():
        plan = await builder.answer("planner", [{"role": "user", "content": task.prompt}])
        return await builder.answer("solver", [{"role": "user", "content":
        f"{task.prompt}\n{plan}"}], parents=[plan])

    trajectory = await builder.build(work)

Paths, seeds, contexts, tool calls and scores of an action depend on its role, on what that is shown
and on its parents, and not on who asks for it: `roles.solver(...)` of a workflow (core/workflow.py)
is one caller of `answer`. Only where a parallel branch asks for something that does not show what
the branch has done before, the path says which branch it is (core/branches.py).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.branches import Branches
from marl_plugins.core.calls import calls_in
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.deadlines import Clock, against, clock_of
from marl_plugins.core.failures import (
    AgentFailure,
    InfrastructureFailure,
    RunEnded,
    leaves_of,
    nearest,
)
from marl_plugins.core.fields import InvalidCall, as_text
from marl_plugins.core.roles import Call, Generate, NotInRecipe, RoleSpec
from marl_plugins.core.sampled import unchangeable
from marl_plugins.core.scoring import ScoreAction, ScoreCollector
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.tools import OpenTools, RequestedCall, Tool
from marl_plugins.core.trajectory import Action, Generation, Task, ToolResult, Trajectory
from marl_plugins.core.workspace import Workspace


@dataclass(frozen=True)
class Turn:
    """The tokens that the next turn of a conversation is shown, see `Action`; `context` is all of
    it."""

    number: int
    before: Action | None
    call: int
    shown: tuple[tuple[str, str], ...]
    shown_ids: tuple[int, ...]
    context: tuple[int, ...]
    extends: bool = True


@dataclass(frozen=True)
class Parents:
    """The paths of the actions that a turn depends on: those that are stated, and those that are
    only derived from its words."""

    stated: tuple[str, ...]
    derived: tuple[str, ...] = ()

    @classmethod
    def of(cls, stated: Iterable[Action], derived: Iterable[Action]) -> Parents:
        """Returns the paths of actions, each once."""
        paths = tuple(dict.fromkeys(action.path for action in stated))
        return cls(paths, tuple(action.path for action in derived if action.path not in paths))


def next_turn(
    chat: ChatFormat, before: Action | None, messages: Sequence[dict[str, str]], call: int
) -> Turn:
    """Returns the turn that begins with some messages.

    Args:
        before: The conversation's last turn, which the messages follow; None: they open a
            conversation.
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
    return Turn(
        number, before, call, shown, ids, (*before.context_ids, *before.generation.ids, *ids)
    )


def digest_of_shown(turn: Turn | Action) -> str:
    """Returns the digest of the words that are shown for a turn, those of the turns before and what
    these said included."""
    words: list[str] = []
    at: Turn | Action | None = turn
    while at is not None:
        words += (part for message in reversed(at.shown) for part in reversed(message))
        at = at.before
        words += [at.text] if at is not None else []
    return hashlib.blake2b(
        "\x1f".join(words).encode("utf-8", "surrogatepass"), digest_size=8
    ).hexdigest()


def said_so_far(chat: ChatFormat, last: Action) -> list[dict[str, str]]:
    """Returns the messages of a conversation up to a turn, that included, as a chat template takes
    them."""
    messages: list[dict[str, str]] = []
    for turn in last.conversation:
        messages += [{"role": role, "content": content} for role, content in turn.shown]
        messages.append({"role": "assistant", "content": chat.said_again(turn.generation.ids)})
    return messages


class TrajectoryBuilder:
    """Builds one trajectory. `answer` and `call_tool` may be called at the same time, but only
    while `build` runs.

    Args:
        sample: Index among the samples of the task.
        step, run_seed: Part of every request's seed, with the task's id, `sample` and the action's
            path.
        roles: The roles that may answer, by name, each with the policy that plays it on this task.
        tools: The tools that may be called without a role, by name.
        place: The task's place among those that run at the same time.
        score_action: Scores each action when it ends; None: actions are not scored.
        workspace: Where tools with `in_workspace` work; whoever opened it closes it.
        last_role: The role whose last action is scored with the label.
        rollout: When the step's rollout began, by `time.monotonic`; default: now.
        origin: As in `Trajectory`.
    """

    def __init__(
        self,
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
        workspace: Workspace | None = None,
        last_role: str | None = None,
        rollout: float | None = None,
        origin: str = "",
    ):
        self.trajectory = Trajectory(
            task=task, sample=sample, step=step, place=place, origin=origin
        )
        """The trajectory, which holds the actions made so far."""
        if rollout is not None:
            self.trajectory.rollout, self.trajectory.start = rollout, time.monotonic() - rollout
        self.roles = roles
        self.tools = tools
        self.run_seed = run_seed
        self._generate = generate
        self.scoring = ScoreCollector(self.trajectory, score_action, last_role)
        """Is told of each action when it has ended."""
        self._opened = OpenTools(self.trajectory, workspace)
        self.branches = Branches()
        """The tasks in which it is worked on."""
        self._actions: dict[str, Action] = {}
        self._clock: Clock | None = None

    async def build(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        score: Callable[[Trajectory], Awaitable[None]] | None = None,
        seconds: float | None = None,
    ) -> Trajectory:
        """Runs `work` and returns the trajectory: finished, failed or lost, never an exception of
        the agents'.

        Args:
            work: Calls `answer` and `call_tool`, itself or through others; what it returns becomes
                the trajectory's answer.
            score: Gives the finished trajectory its outcome, while its workspace and its tools'
                sessions are there.
            seconds: Deadline of the agents' work; past it the trajectory is lost to infrastructure
                (`deadline`), because the agents themselves are bounded by turns, tokens and their
                tools' limits. It stands still while a request waits for an engine, or the
                work for its turn. Scores that are outstanding then have the same time again.

        Raises:
            Exception: Whatever `work` raises by mistake, and no agent's or infrastructure's failure
                is.
        """
        trajectory = self.trajectory
        async with self._opened:
            try:
                async with trajectory.lost_after(seconds, "not finished") as deadline:
                    with clock_of(deadline) as self._clock, against(self._clock):
                        await self._work(work)
                if not trajectory.infrastructure_failure:
                    self.scoring.ended()
                    await self.scoring.finish(seconds)
            finally:
                await self.branches.cancel(self.scoring.running)
            trajectory.seconds = trajectory.now() - trajectory.start
            trajectory.sort()
            if score is not None:
                await score(trajectory)
        return trajectory

    async def _work(self, work: Callable[[], Awaitable[Any]]) -> None:
        trajectory = self.trajectory
        try:
            returned = await self.branches.begin(work)
            trajectory.answer = (
                None if returned is None else as_text(returned, "what run returns", None)[0]
            )
            trajectory.returned = returned.path if isinstance(returned, Action) else None
        except (AgentFailure, BaseExceptionGroup) as error:
            failure = agent_failure_in(error)
            trajectory.agent_failure, trajectory.detail = failure.kind, str(failure)
            await self.branches.settle()

    async def answer(
        self,
        role: str,
        messages: Sequence[dict[str, str]],
        *,
        parents: Sequence[Action] = (),
        continues: Action | None = None,
        notes: Mapping[str, Any] | None = None,
        spec: RoleSpec | None = None,
        derived: Sequence[Action] = (),
        waits: Callable[[Action], bool] | None = None,
    ) -> Action:
        """Shows a role messages and returns its last action: its only turn, or the one after which
        it calls no more tools.

        Args:
            messages: Chat messages (`role`, `content`): all that opens a conversation, or what
                follows the one continued.
            parents: The actions of this trajectory that the messages were made from; `continues` is
                one of them anyway.
            continues: The role's action whose conversation this call continues; None: it opens one.
            notes: What is recorded with each of its turns (`Action.notes`); its values are shared
                by them.
            spec: The role as it is played in this call; None: as the builder has it.
            derived: More parents, of the first turn (`Action.derived`).
            waits: Says of a turn that whoever calls tells `scoring` of it, once it is known what
                its tools have answered.

        Raises:
            NotInRecipe: There is no such role.
            InvalidCall: `continues` is no action of the role in this trajectory.
            AgentFailure: The context leaves no room, or the role still calls a tool in the last of
                several turns.
            InfrastructureFailure: The engine or a tool is down.
        """
        self.branches.enter()
        spec = spec or role_of(self.roles, role)
        if continues is not None:
            check_continues(role, continues, self._actions)
            parents = (continues, *parents)
        return await self._converse(
            spec, messages, Parents.of(parents, derived), continues, notes or {}, waits
        )

    async def call_tool(self, call: RequestedCall) -> ToolResult:
        """Calls a tool without a role: the result is the trajectory's and no action's.

        Raises:
            InfrastructureFailure: The tool is down.
        """
        self.branches.enter()
        with self.branches.asking(self.branches.path_of_call(call.name, call.text)):
            (result,) = await self._opened.run([call])
        return result

    async def _converse(
        self,
        spec: RoleSpec,
        messages: Sequence[dict[str, str]],
        parents: Parents,
        continues: Action | None,
        notes: Mapping[str, Any],
        waits: Callable[[Action], bool] | None,
    ) -> Action:
        """The role's turns, to the last action."""
        before, call = continues, continues.call + 1 if continues else 0
        for number in range(spec.max_turns):
            turn = next_turn(spec.chat, before, messages, call)
            action = await self._act(spec, turn, parents, notes)
            calls = calls_of(spec, action)
            try:
                await self._opened.run(calls, action)
            finally:
                action.end = self.trajectory.now()
            if not (waits and waits(action)):
                self.scoring.acted(action)
            before = action
            if not calls:
                return action
            if number + 1 == spec.max_turns:
                break
            messages = spec.answers(action.tool_results)
            parents = Parents((action.path,))
        assert before is not None
        if spec.max_turns > 1 and spec.endless_tools_fail:
            what = f"role {spec.name!r} still called a tool in its last turn of {spec.max_turns}"
            raise AgentFailure("endless_tool_calls", what)
        return before

    async def _act(
        self, spec: RoleSpec, turn: Turn, parents: Parents, notes: Mapping[str, Any]
    ) -> Action:
        t = self.trajectory
        room = room_after(spec, turn)
        path = self.branches.path(spec.name, parents.stated, turn.context)
        seed = derive_seed(self.run_seed, t.step, t.task.id, t.sample, path)
        start = t.now()
        asked = request(spec, turn, t, path, room, seed)
        with self.branches.asking(path), against(self._clock):
            generation = unchangeable(await self._generate(asked), spec.external)
        action = action_of(spec, turn, path, parents, generation)
        action.notes, action.start, action.answered = dict(notes), start, t.now()
        t.actions = [*t.actions, action]
        self._actions[path] = action
        return action


def action_of(
    spec: RoleSpec, turn: Turn, path: str, parents: Parents, generation: Generation
) -> Action:
    """Returns the action at a path: what a role has sampled in a turn."""
    return Action(
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
        offered=json.dumps(spec.chat.tools)
        if spec.find_calls and spec.chat.tools and turn.before is None
        else "",
        parents=parents.stated + parents.derived,
        derived=parents.derived,
        thought=spec.chat.thought(generation.ids),
        defused=spec.chat.defused(turn.shown),
    )


def calls_of(spec: RoleSpec, action: Action) -> list[RequestedCall]:
    """Returns the calls of tools that an action makes."""
    if not spec.tools:
        return []
    return calls_in(spec.tools, spec.find_calls, action.text, spec.chat.said(action.generation.ids))


def role_of(roles: Mapping[str, RoleSpec], name: str) -> RoleSpec:
    """Returns a role by its name.

    Raises:
        NotInRecipe: There is none.
    """
    if name not in roles:
        raise NotInRecipe(f"the recipe has no role {name!r}{nearest(name, roles)}")
    return roles[name]


def check_continues(role: str, action: object, known: Mapping[str, Action]) -> None:
    """Raises `InvalidCall` where a call of a role continues something else than one of the role's
    `known` actions, by path."""
    if not isinstance(action, Action):
        raise InvalidCall(
            f"role {role!r}: continues takes an action of the role, got {type(action).__name__}",
            None,
        )
    if known.get(action.path) is not action:
        raise InvalidCall(
            f"role {role!r}: continues takes an action of this trajectory, got one of another", None
        )
    if action.role != role:
        raise InvalidCall(
            f"role {role!r} cannot continue a conversation of role {action.role!r}; give that "
            f"action as a field, and in `continues` the last action of role {role!r} itself",
            None,
        )


def request(
    spec: RoleSpec, turn: Turn, trajectory: Trajectory, path: str, room: int, seed: int
) -> Call:
    """Returns the request that an engine is asked for the action at `path`, which has at most
    `room` tokens."""
    limit = spec.sampling.max_new_tokens
    return Call(
        policy=spec.policy,
        context_ids=turn.context,
        sampling=spec.sampling,
        max_tokens=room if limit is None else min(limit, room),
        seed=seed,
        role=spec.name,
        task=trajectory.task.id,
        sample=trajectory.sample,
        path=path,
        step=trajectory.step,
        shown=digest_of_shown(turn),
        place=trajectory.place,
    )


def room_after(spec: RoleSpec, turn: Turn) -> int:
    """Returns how many tokens a role may answer in a turn.

    Raises:
        AgentFailure: None.
    """
    length, most = len(turn.context), spec.sampling.max_len
    if length >= most:
        raise AgentFailure(
            "context",
            f"role {spec.name!r}, turn {turn.number + 1}: a context of {length} tokens leaves no "
            f"room in {most} (--data.max_len)",
        )
    return most - length


def agent_failure_in(error: AgentFailure | BaseExceptionGroup[BaseException]) -> AgentFailure:
    """Returns the agents' failure, also out of the group that an `asyncio.TaskGroup` of the
    workflow makes of it.

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
