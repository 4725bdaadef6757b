"""Workflows: how roles and tools call each other on one task, as plain async Python.

    async def run(task, roles, tools):
        plan = await roles.solver(problem=task.prompt)
        a, b = await asyncio.gather(roles.critic(plan=plan), roles.coder(problem=task.prompt, plan=plan))
        return await roles.verifier(plan=plan, criticism=a, code=b)

Calling a role renders its prompt from the fields, generates, and, where the role has tools, runs the calls that it finds
in the answer and goes on until there is none or `max_turns` is reached. What is returned is the role's last `Action`;
`str(action)` is its text. Passing an action as a field (or naming it in `after=`) records the dependency. Parallel,
branching and looping workflows are just Python.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import AgentFailure, InfrastructureFailure, nearest
from marl_plugins.core.seeds import derive_seed
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
        max_tokens: At most so many new tokens.
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


@dataclass(frozen=True)
class Tool:
    """A tool that roles may use.

    Args:
        name: What recipes call it.
        run: Answers one call. Raises `InfrastructureFailure` when the tool itself is down; a call that fails through the
            agent's fault is an answer with `ok=False`.
        find: The calls in an action's text, in order; none ends the role's turn.
        message_role: Under which chat role the answer is shown.
    """

    name: str
    run: Callable[[str], Awaitable[ToolResult]]
    find: Callable[[str], list[str]]
    message_role: str = "user"


@dataclass(frozen=True)
class RoleSpec:
    """A role, ready to be called: its policy, its prompt, its limits."""

    name: str
    policy: str
    render: Callable[[Mapping[str, str]], list[dict[str, str]]]
    """Fields to opening messages. Raises `KeyError` for a field that the prompt needs and was not given."""
    chat: ChatFormat
    sampling: Sampling
    tools: tuple[Tool, ...] = ()
    max_turns: int = 1
    endless_tools_fail: bool = True
    """Whether a tool call in the last of several turns is an agent failure; else the workflow goes on with that action."""


class NotInRecipe(AttributeError):
    """A workflow asks for a role or a tool that there is none of."""


class Miscalled(TypeError):
    """A workflow calls a role with other fields than its prompt has, or does not wait for one."""


Generate = Callable[[Call], Awaitable[Generation]]
ScoreAction = Callable[[Action, "Seen"], Awaitable[float | None] | None]
"""An awaitable score, or None where nobody scores this action."""
Workflow = Callable[..., Awaitable[Any]]


@dataclass(frozen=True)
class Seen:
    """What had happened when an action was scored: a frozen view that cannot be changed by what happens later.

    There is no label here: the score of an action must not leak the ground truth. `SeenLast` has it.
    """

    task_id: str
    prompt: str
    role: str
    messages: tuple[tuple[str, str], ...]
    """The opening messages shown to the action's conversation, as (chat role, text)."""
    before: tuple[Action, ...]
    """Copies of the actions that this one depends on, directly or through others, with their tools' answers, unscored."""

    @classmethod
    def of(cls, trajectory: Trajectory, action: Action) -> Seen:
        """What an action had seen: nothing but its ancestors, for how far that which runs beside it has come is a matter of
        timing."""
        before = tuple(replace(a, score=None, explanation="") for a in trajectory.ancestors(action.path))
        return cls(trajectory.task.id, trajectory.task.prompt, action.role, action.opening, before)


@dataclass(frozen=True)
class SeenLast(Seen):
    """What the scorer of the last action of the last role gets: the ground truth and the system's answer besides.

    That action alone answers for the outcome (MAPPA section 3.2); everyone else is scored without the label.
    """

    label: Any
    answer: str | None


class Roles:
    """The roles of one trajectory, as attributes."""

    def __init__(self, run: _Run, specs: Mapping[str, RoleSpec]):
        self._run = run
        self._specs = specs

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Action]]:
        try:
            spec = self._specs[name]
        except KeyError:
            raise NotInRecipe(f"the recipe has no role {name!r}{nearest(name, self._specs)}") from None

        async def call(*nameless: Any, after: Sequence[Action] = (), **fields: Any) -> Action:
            if nameless:
                raise Miscalled(f"role {name!r} takes its fields by name: roles.{name}(FIELD=...), got {nameless[0]!r:.60}")
            return await self._run.role(spec, fields, after)

        return call


class Tools:
    """The tools of one trajectory, as attributes: `result = await tools.python(code)`."""

    def __init__(self, run: _Run, tools: Mapping[str, Tool]):
        self._run = run
        self._tools = tools

    def __getattr__(self, name: str) -> Callable[[str], Awaitable[ToolResult]]:
        try:
            tool = self._tools[name]
        except KeyError:
            raise NotInRecipe(f"the recipe has no tool {name!r}{nearest(name, self._tools)}") from None

        async def call(text: str) -> ToolResult:
            self._run.enter()
            return await tool.run(text)

        return call


class _Run:
    """One trajectory while it runs."""

    def __init__(
        self,
        trajectory: Trajectory,
        run_seed: int,
        generate: Generate,
        score_action: ScoreAction | None,
        last_role: str | None,
    ):
        self.trajectory = trajectory
        self.last_role = last_role
        self.held: list[tuple[Action, Seen]] = []
        self.run_seed = run_seed
        self.generate = generate
        self.score_action = score_action
        self.scoring: dict[asyncio.Task[None], Action] = {}
        self.branches: set[asyncio.Task[Any]] = set()
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

    async def role(self, spec: RoleSpec, fields: Mapping[str, Any], after: Sequence[Action]) -> Action:
        self.enter()
        for name, value in (*fields.items(), *(("after", action) for action in after)):
            refuse_unawaited(value, f"role {spec.name!r} was given, as {name!r},")
        given = [*after, *(f for f in fields.values() if isinstance(f, Action))]
        parents = tuple(dict.fromkeys(a.path for a in given))
        try:
            messages = spec.render({k: str(v) for k, v in fields.items()})
        except KeyError as error:
            raise Miscalled(f"role {spec.name!r} was called with the wrong fields: {error.args[0]}") from None
        shown_ids = context = spec.chat.opening(messages)
        shown = tuple((m["role"], m["content"]) for m in messages)
        before: Action | None = None
        for turn in range(spec.max_turns):
            action = await self._act(spec, turn, context, shown_ids, shown, parents, before)
            calls = [(tool, call) for tool in spec.tools for call in tool.find(action.text)]
            if calls:
                action.tool_results = tuple([await tool.run(call) for tool, call in calls])
            self._score(action)
            before = action
            if not calls:
                return action
            if turn + 1 == spec.max_turns:
                break
            message = {"role": calls[0][0].message_role, "content": action.tool_output}
            shown_ids = spec.chat.continuation(action.generation.ids, message)
            shown = ((message["role"], message["content"]),)
            context = context + action.generation.ids + shown_ids
            parents = (action.path,)
        assert before is not None
        if spec.max_turns > 1 and spec.endless_tools_fail:
            raise AgentFailure(
                "endless_tool_calls", f"role {spec.name!r} still called a tool in its last turn of {spec.max_turns}"
            )
        return before

    async def _act(
        self,
        spec: RoleSpec,
        turn: int,
        context: tuple[int, ...],
        shown_ids: tuple[int, ...],
        shown: tuple[tuple[str, str], ...],
        parents: tuple[str, ...],
        before: Action | None,
    ) -> Action:
        room = spec.sampling.max_len - len(context)
        if room < 1:
            raise AgentFailure(
                "context",
                f"role {spec.name!r}, turn {turn + 1}: a context of {len(context)} tokens leaves no room in "
                f"{spec.sampling.max_len} (--data.max_len)",
            )
        path = action_path(spec.name, parents, context, self.taken)
        self.taken.add(path)
        limit = spec.sampling.max_new_tokens
        t = self.trajectory
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
            )
        )
        action = Action(
            path=path,
            role=spec.name,
            policy=spec.policy,
            turn=turn,
            shown_ids=shown_ids,
            generation=generation,
            text=spec.chat.text(generation.ids),
            shown=shown,
            before=before,
            parents=parents,
        )
        self.trajectory.actions.append(action)
        return action

    def _score(self, action: Action) -> None:
        """Start scoring an action while the rollout goes on; the last role's wait until it is known which is its last."""
        if self.score_action is None:
            return
        seen = Seen.of(self.trajectory, action)
        if action.role == self.last_role:
            self.held.append((action, seen))
        else:
            self._start_scoring(action, seen)

    def score_last_role(self, answer: Any) -> None:
        """The workflow has ended: score the last role's actions, the last of them with the label.

        The last is the one that the workflow returned, or else the deepest in the graph. A task without a label gives none.
        """
        trajectory = self.trajectory
        trajectory.sort()
        order = {id(action): n for n, action in enumerate(trajectory.actions)}
        self.held.sort(key=lambda held: (held[0] is answer, order[id(held[0])]))
        for action, seen in self.held[:-1]:
            self._start_scoring(action, seen)
        for action, seen in self.held[-1:]:
            label = trajectory.task.label
            last = seen if label is None else SeenLast(**vars(seen), label=label, answer=trajectory.answer)
            self._start_scoring(action, last)

    def _start_scoring(self, action: Action, seen: Seen) -> None:
        assert self.score_action is not None
        verdict = self.score_action(action, seen)
        if verdict is None:
            return
        self.trajectory.actions_scored = True

        async def score() -> None:
            try:
                action.score = checked_score(await verdict, f"action of role {action.role!r}")
            except InfrastructureFailure as failure:  # a verdict that cannot be had is missing, never invented
                action.unscored = failure.kind

        self.scoring[asyncio.create_task(score())] = action

    async def finish_scoring(self, seconds: float | None) -> None:
        """Wait for the scores that are still out; one that does not come in time is missing, the others stay.

        Raises:
            Exception: What a scorer raises besides `InfrastructureFailure`.
        """
        if not self.scoring:
            return
        done, late = await asyncio.wait(self.scoring, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for task in late:
            self.scoring[task].unscored = "deadline"
            task.cancel()

    async def settle(self, main: asyncio.Task[Any] | None) -> None:
        """After an agent failure in one branch: let the other branches run to their own end.

        Cancelling them would make it a matter of timing which of their actions exist.
        """
        others = [
            b for b in self.branches if b is not main and not b.done()
        ]  # what ended before is the workflow's to handle
        for result in await asyncio.gather(*others, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(result, AgentFailure | asyncio.CancelledError):
                raise result

    async def cancel(self, main: asyncio.Task[Any] | None) -> None:
        self.ended = True
        mine = [t for t in (*self.branches, *self.scoring) if t is not main]
        for task in mine:
            task.cancel()
        # Those that have ended too: a failure that came beside the first one is nobody's to report.
        await asyncio.gather(*mine, return_exceptions=True)


def refuse_unawaited(value: Any, what: str) -> None:
    """Raise `Miscalled` where a workflow passes on a call as such, and not its answer."""
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()  # or Python says once more that it was never awaited
        raise Miscalled(f"{what} a call that nobody waits for; write `await` before it")


def checked_score(score: float | None, of: str) -> float | None:
    """A score, which has to lie in [0, 1] or be None (missing).

    Raises:
        ValueError: It does not; the scorer has a bug.
    """
    if score is None:
        return None
    value = float(score)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"the score of an {of} is {score!r}; scores lie in [0, 1] (divide a 0-10 verdict by 10)")
    return value


def agent_failure_in(error: AgentFailure | BaseExceptionGroup[BaseException]) -> AgentFailure:
    """The agents' failure, also out of the group that an `asyncio.TaskGroup` of the workflow makes of it.

    Raises:
        InfrastructureFailure: The group holds one; it counts before the agents' failures.
        BaseExceptionGroup: The group holds something else: a bug of the recipe.
    """
    if isinstance(error, AgentFailure):
        return error
    _, bugs = error.split((AgentFailure, InfrastructureFailure, asyncio.CancelledError))
    if bugs is not None:
        raise error
    leaves = list(_leaves(error))
    for kind in (InfrastructureFailure, AgentFailure):
        for leaf in leaves:
            if isinstance(leaf, kind):
                if isinstance(leaf, AgentFailure):
                    return leaf
                raise leaf
    raise error


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


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
    score_action: ScoreAction | None = None,
    last_role: str | None = None,
    seconds: float | None = None,
) -> Trajectory:
    """Run a workflow on one task and return its trajectory, finished, failed or lost, never an exception of the agents'.

    Args:
        workflow: `async def run(task, roles, tools)`; what it returns becomes the trajectory's answer.
        sample: Index among the samples of the task.
        step, run_seed: Part of every request's seed.
        last_role: The role whose last action is scored with the label.
        seconds: Deadline of the agents' work; past it the trajectory is lost to infrastructure (`deadline`), because the agents
            themselves are bounded by turns and tokens. Scores that are out when they are done have as long again.

    Raises:
        Exception: Whatever the recipe's own code raises by mistake; it ends the run.
    """
    trajectory = Trajectory(task=task, sample=sample, step=step)
    run = _Run(trajectory, run_seed, generate, score_action, last_role)
    started = time.monotonic()
    main = asyncio.current_task()
    returned: Any = None
    try:
        async with asyncio.timeout(seconds) as deadline:
            try:
                returned = await workflow(task, Roles(run, roles), Tools(run, tools))
                trajectory.answer = None if returned is None else str(returned)
            except (AgentFailure, BaseExceptionGroup) as error:
                failure = agent_failure_in(error)
                trajectory.agent_failure, trajectory.detail = failure.kind, str(failure)
                await run.settle(main)
        run.score_last_role(returned)
        await run.finish_scoring(seconds)
    except InfrastructureFailure as failure:
        trajectory.infrastructure_failure, trajectory.detail = failure.kind, str(failure)
    except TimeoutError:
        if not deadline.expired():
            raise
        trajectory.infrastructure_failure = "deadline"
        trajectory.detail = f"not finished after {seconds} s (limits.task_seconds)"
    finally:
        await run.cancel(main)
    if trajectory.infrastructure_failure:  # it counts before the agents' own: what is lost is never scored
        trajectory.agent_failure = None
    trajectory.seconds = time.monotonic() - started
    trajectory.sort()
    return trajectory
