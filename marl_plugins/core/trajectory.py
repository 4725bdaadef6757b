"""A trajectory is what one run of a workflow on one task leaves behind.

    Task -> Action, Action, ... -> Trajectory

An `Action` is one generation of one role in one turn: the exact ids that were shown and sampled,
its tool calls and what they answered, and the actions whose output it saw (`parents`). Scores,
rewards and advantages are written onto it by the later stages; each field says who writes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.core.failures import InfrastructureFailure

EVALUATION = -1
"""Stands for the step in an evaluation's trajectories, and in their seeds."""


@dataclass(frozen=True)
class Task:
    """One data item.

    Args:
        id: Stable name of the item; results are keyed by it.
        prompt: What the agents are asked.
        label: The ground truth; only graders see it.
        metadata: Anything else the recipe needs (JSON values).
        files: What the trajectory's workspace begins with: a name in it, and the file that is
            copied there.
        dataset: The set of an evaluation that it belongs to, which has metrics of its own; records
            do not have it.
        samples: Of it in an evaluation, of a set with as many for each task; None: as the flag
            says.
    """

    id: str
    prompt: str
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    dataset: str = ""
    samples: int | None = None


@dataclass(frozen=True)
class File:
    """One file of a trajectory's workspace.

    Args:
        path: Relative to the workspace.
        size: In bytes.
        sha256: Of the content, in hexadecimal digits.
        writer: Path of the action whose call last changed the content; empty: the task's own, or a
            call of the workflow's.
    """

    path: str
    size: int
    sha256: str
    writer: str


@dataclass(frozen=True)
class ToolResult:
    """The answer of a tool.

    Args:
        ok: False when the agent's own call failed (its code raised, ran too long, ...).
        seconds: How long it worked; where a tool does not say, how long the call took.
        files: Names of the files that the call left behind; in a workspace, of those that it wrote.
        start: When the call was made, as in `Action`; None: no tool was called, because there is
            none of that name or a limit was reached.
        failure: Kind of the infrastructure failure to which the call was lost; `cancelled` where
            its branch of the workflow was ended meanwhile, as by the trajectory's deadline.
    """

    tool: str
    call: str
    output: str
    ok: bool
    seconds: float = 0.0
    files: tuple[str, ...] = ()
    start: float | None = None
    failure: str = ""

    @property
    def status(self) -> str:
        """`ok`, `failed` through the agent's fault, or the kind of the infrastructure failure."""
        return self.failure or ("ok" if self.ok else "failed")

    @property
    def bytes(self) -> int:
        """Size of the answer in UTF-8."""
        return len(self.output.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True)
class Generation:
    """The answer of an engine to one request.

    Args:
        ids: Sampled token ids, the end-of-sequence token included when it was sampled.
        logprobs: One float32 value per id, of the distribution that was sampled from (temperature
            and top-p applied).
        finish: `stop`, or `length` when the token limit cut it off.
        policy, version: Whose weights the engine held, and of which update; where they changed
            meanwhile, when it began.
        changes: Where they did (`--train.partial_rollout_enable`): the first token that newer
            weights sampled, and their version.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    policy: str
    version: int
    changes: tuple[tuple[int, int], ...] = ()

    @property
    def newest(self) -> int:
        """The version that sampled the last token."""
        return self.changes[-1][1] if self.changes else self.version

    @property
    def token_versions(self) -> list[int]:
        """The version that sampled each token."""
        versions = [self.version] * len(self.ids)
        for first, version in self.changes:
            versions[first:] = [version] * (len(versions) - first)
        return versions


@dataclass(eq=False)
class SampledAction:
    """The part of an action that was shown and sampled. It is trained on as it is, and cannot be
    set again.

    `context_ids + generation.ids` is the very sequence the policy saw and continued. A later turn
    of the same conversation begins with that sequence and stores only what was shown since, so
    nothing is ever tokenised, or kept, twice; except where the model's chat template changes
    earlier turns (`extends`).
    """

    path: str
    """Names the action within its trajectory by what it is (role, what it saw, how many alike came
    before in its branch of the workflow), never by when it ran: `solver.07c4d1aa`,
    `coder.1f3a99b0`, `coder.1f3a99b0+1`. Seeds and results are keyed by (task, sample, path)."""
    role: str
    policy: str
    turn: int
    shown_ids: tuple[int, ...]
    """Ids shown since the end of the turn before; the whole context in a first turn, and where
    `extends` is False."""
    generation: Generation
    text: str
    shown: tuple[tuple[str, str], ...] = ()
    """What was shown since the turn before, as (chat role, text): the opening messages in a first
    turn."""
    before: Action | None = None
    """The turn before in the same conversation."""
    parents: tuple[str, ...] = ()
    """Paths of the actions whose output this one saw, directly; the turn before in the same
    conversation is among them."""
    derived: tuple[str, ...] = field(default=(), kw_only=True)
    """Those of the parents that nobody has stated: their words stand in what was shown. The
    action's own path and its seed do not depend on them."""
    call: int = field(default=0, kw_only=True)
    """Which call of the role in its conversation: 0 opened it, others continued it
    (`continues=`)."""
    extends: bool = field(default=True, kw_only=True)
    """Whether the context begins with that of the turn before and what it sampled, token for token.
    False where the chat template shows earlier turns differently once another message follows
    (thinking that is removed)."""
    offered: str = field(default="", kw_only=True)
    """The functions that the chat template shows with the messages (`calls:`), as JSON; in a
    conversation's first turn."""
    thought: int = field(default=0, kw_only=True)
    """How many of the sampled ids, from the first, are thinking; `text` is what follows them."""
    defused: int = field(default=0, kw_only=True)
    """How many control tokens the shown messages spell, which stayed text (core/foreign.py)."""

    if not TYPE_CHECKING:  # else a type checker would let any name be set

        def __setattr__(self, name: str, value: object) -> None:
            if name in SampledAction.__dataclass_fields__ and name in self.__dict__:
                raise AttributeError(
                    f"{name} of action {self.path} cannot be changed: what was shown and sampled "
                    "is trained on as it was"
                )
            super().__setattr__(name, value)


@dataclass(eq=False)
class Action(SampledAction):
    """One generation of one role in one turn: what was sampled, and what is written about it on the
    way to the update."""

    tool_results: tuple[ToolResult, ...] = ()
    score: float | None = None
    """In [0, 1]; written by `marl_score_action`. None: nobody gave one."""
    unscored: str = ""
    """Why the score is missing, where infrastructure failed."""
    explanation: str = ""
    """Why, for people; written by whoever scores."""
    reward: float | None = None
    """A real number; written by `marl_credit`. None: the action is not trained on."""
    terms: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward, for records and metrics; written by `add_reward`, or by whoever
    composes a reward."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What plugins record with the action (JSON values), each under its name."""
    returns: float | None = None
    """The reward summed over the return scope; written by the estimator's scope."""
    advantage: float | None = None
    """Mean advantage over the action's tokens; written by the trainer, for the records."""
    advantages: tuple[float, ...] = ()
    """One per sampled token; written by the trainer, for the records."""
    trainer_logprobs: tuple[float, ...] = ()
    """Float32 log-probs of the sampled tokens by the trainer's weights before the update, where
    `generation.logprobs` are the engine's; written by the trainer, for the records. Empty: the
    action was not trained on, or they are not recorded."""
    left_out: str | None = None
    """Why the action is not trained on, for the ledger."""
    start: float = 0.0
    """When it was asked for, in seconds since the step's rollout began."""
    answered: float = 0.0
    """When it had been generated."""
    end: float = 0.0
    """When its tools had answered, too."""
    replayed: bool = False
    """Whether its words were given and not sampled: it is an action of a fork's original, or the
    one that the fork replaces by other words. It is not trained on."""

    def add_reward(self, term: str, value: float) -> None:
        """Adds a named term to the action's reward.

        Raises:
            ValueError: The action has no reward; it is not trained on.
        """
        if self.reward is None:
            raise ValueError(f"action {self.path} has no reward to which {term!r} could be added")
        self.reward += value
        self.terms[term] = self.terms.get(term, 0.0) + value

    def change_score(self, score: float, term: str) -> None:
        """Replaces the score; the reward, where there is one, changes by as much, as a named
        term."""
        before, self.score = self.score, score
        if before is not None and self.reward is not None and score != before:
            self.add_reward(term, score - before)

    @property
    def context_ids(self) -> tuple[int, ...]:
        """All ids that were shown to the policy for this action."""
        if self.before is None or not self.extends:
            return self.shown_ids
        ids: list[int] = []
        turns = self.chain
        for turn in turns[:-1]:
            ids += turn.shown_ids
            ids += turn.generation.ids
        ids += self.shown_ids
        return tuple(ids)

    @property
    def chain(self) -> list[Action]:
        """The turns whose contexts extend each other up to this one, which is the last."""
        turns = [self]
        while turns[-1].extends and turns[-1].before is not None:
            turns.append(turns[-1].before)
        return turns[::-1]

    @property
    def conversation(self) -> list[Action]:
        """The turns of the conversation up to this one, which is the last."""
        turns = [self]
        while turns[-1].before is not None:
            turns.append(turns[-1].before)
        return turns[::-1]

    @property
    def opening(self) -> tuple[tuple[str, str], ...]:
        """The messages that the action's call began with, as (chat role, text), and the
        conversation before it; first, as `tools`, what the chat template offers."""
        turns = self.conversation
        first = next(turn for turn in turns if turn.call == self.call)
        offered = (("tools", turns[0].offered),) if turns[0].offered else ()
        return (*offered, *(first.before.messages if first.before else ()), *first.shown)

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The whole conversation, this action included, as (chat role, text)."""
        return tuple(
            message
            for turn in self.conversation
            for message in (*turn.shown, ("assistant", turn.text))
        )

    @property
    def tool_output(self) -> str:
        """Returns what the action's tools answered, as one text; empty without a tool call."""
        return "\n".join(result.output for result in self.tool_results)

    def __str__(self) -> str:
        return self.text


def action_path(
    role: str,
    seen: tuple[str, ...],
    context_ids: Sequence[int],
    twins: Counter[str],
    branch: str = "",
) -> str:
    """Returns the path of a role's action that saw the actions at paths `seen` in the context
    `context_ids`.

    Actions of one branch that saw the very same are numbered in the order in which they were asked
    for: `twins` counts them by the path of the first.

    Args:
        branch: What tells apart the branch of the workflow in which the action is asked for
            (core/branches.py); empty: nothing has to.
    """
    digest = hashlib.blake2b("\x1f".join(sorted(seen)).encode(), digest_size=4)
    digest.update(array("q", context_ids).tobytes())
    digest.update(branch.encode())
    path = f"{role}.{digest.hexdigest()}"
    twin = twins[path]
    twins[path] += 1
    return f"{path}+{twin}" if twin else path


def path_order(path: str) -> tuple[str, int]:
    """Returns the key that sorts paths: twins are ordered by their numbers, `+2` before `+10`."""
    first, _, twin = path.partition("+")
    return first, int(twin or 0)


@dataclass(eq=False)
class Trajectory:
    """All actions of one run of a workflow on one task, with their dependency graph and the
    outcome."""

    task: Task
    sample: int
    step: int
    actions: Sequence[Action] = field(default_factory=list)
    """In graph order once the workflow has ended; from then on a tuple, which nobody may replace
    (core/sampled.py)."""
    answer: str | None = None
    """What the workflow returned, as text."""
    returned: str | None = None
    """Path of the action that the workflow returned, if it returned one."""
    agent_failure: str | None = None
    infrastructure_failure: str | None = None
    detail: str = ""
    actions_scored: bool = False
    """Whether a scorer judges single actions, so that a missing score stays missing and is not
    replaced by the outcome."""
    outcome: float | None = None
    """In [0, 1]; written by `marl_score_outcome`. An agent failure scores 0; an infrastructure
    failure is never scored."""
    outcomes: dict[str, float] = field(default_factory=dict)
    """The outcome of each role, where the scorer gave one per role; `outcome` is then their
    mean."""
    outcome_parts: dict[str, float] = field(default_factory=dict)
    """Named parts of the outcome (accuracy, F1, ...), where it has several; a grader may write
    it."""
    files: tuple[File, ...] = ()
    """The files of the workspace, with who wrote them, after the last call."""
    workspace: Path | None = None
    """The folder with these files, until the trajectory has been scored; None also where no call
    has needed one."""
    tool_results: tuple[ToolResult, ...] = ()
    """What tools answered that the workflow itself called; the agents' are their actions'."""
    origin: str = ""
    """Who made it, where the step's own rollout did not (`marl_exchange`)."""
    learner: str = ""
    """The one policy that is trained on it (`Exchange.read` for a policy); empty: all that play in
    it. A record does not say."""
    replayed: bool = False
    """Whether it has the log-probs with which earlier weights of this run sampled it
    (`Exchange.again`); a record does not say."""
    forked: tuple[str, int] | None = None
    """Of a fork, the path of the action from which it goes on and its number among the forks of
    that action; `task`, `sample` and `step` are its original's."""
    place: int = 0
    """The task's place in its step or evaluation; a record does not have it."""
    start: float = 0.0
    """When it began, in seconds since the step's rollout did."""
    seconds: float = 0.0
    """From then until the last score of an action."""
    rollout: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When the step's rollout began, by `time.monotonic`."""

    @property
    def is_evaluation(self) -> bool:
        """Returns whether it belongs to an evaluation, and nothing is trained on it."""
        return self.step == EVALUATION

    @property
    def is_original(self) -> bool:
        """Returns whether a step of this run has sampled all of it: it has not come from elsewhere,
        and is no fork."""
        return not self.origin and self.forked is None

    @property
    def name(self) -> str:
        """`task/sample`, for messages; `task/origin:sample` where another run made it, and
        `task/sample/path:number` for a fork."""
        fork = "/{}:{}".format(*self.forked) if self.forked else ""
        return f"{self.task.id}/{self.origin}{':' if self.origin else ''}{self.sample}{fork}"

    @property
    def order(self) -> tuple[int, str, int, tuple[str, int]]:
        """Returns the key that sorts the trajectories of a step: by task and sample, whenever they
        finished; forks stand after their original."""
        return self.place, self.origin, self.sample, self.forked or ("", 0)

    def now(self) -> float:
        """Returns seconds since the step's rollout began."""
        return time.monotonic() - self.rollout

    def outcome_of(self, role: str) -> float | None:
        """Returns what a role's actions are rewarded with: its own outcome where there are outcomes
        per role, else the team's."""
        return self.outcomes.get(role) if self.outcomes else self.outcome

    def lose(self, kind: str, detail: str) -> None:
        """Loses the trajectory to infrastructure, which counts before the agents' own failure: it
        is never scored."""
        self.infrastructure_failure, self.detail, self.agent_failure = kind, detail, None

    @asynccontextmanager
    async def lost_after(
        self, seconds: float | None, unfinished: str
    ) -> AsyncIterator[asyncio.Timeout]:
        """Loses the trajectory to an infrastructure failure inside, or to its deadline, and raises
        nothing (`async with`).

        Args:
            unfinished: What had not happened by the deadline, for the detail.
        """
        deadline = asyncio.timeout(seconds)
        try:
            async with deadline:
                yield deadline
        except TimeoutError:
            if not deadline.expired():  # one that was raised inside passes
                raise
            self.lose("deadline", f"{unfinished} after {seconds} s (limits.task_seconds)")
        except InfrastructureFailure as error:
            self.lose(error.kind, str(error))

    def sort(self) -> None:
        """Puts the actions into an order that depends on the graph alone: by depth, then by path;
        and the workflow's calls into one that depends on their content."""
        self.actions = tuple(in_graph_order(self.actions))
        self.tool_results = tuple(
            sorted(self.tool_results, key=lambda t: (t.tool, t.call, t.output))
        )

    def ancestors(self, path: str) -> list[Action]:
        """Returns the actions that the one at `path` depends on, directly or through others,
        ordered as by `sort`."""
        by_path = {a.path: a for a in self.actions}
        reached = paths_before(by_path[path], by_path)
        return in_graph_order([a for a in self.actions if a.path in reached]) if reached else []

    def descendants(self, path: str) -> set[str]:
        """Returns the paths of all actions that depend on the action at `path`, itself included,
        along the dependency graph."""
        reached = {path}
        for action in self.actions:  # parents come first
            if reached.intersection(action.parents):
                reached.add(action.path)
        return reached


def paths_before(action: Action, by_path: Mapping[str, Action]) -> set[str]:
    """Returns the paths of the actions that one depends on, directly or through others."""
    pending, reached = list(action.parents), set[str]()
    while pending:
        parent = pending.pop()
        if parent not in reached and parent in by_path:
            reached.add(parent)
            pending += by_path[parent].parents
    return reached


def in_graph_order(actions: Sequence[Action]) -> list[Action]:
    """Returns actions by their depth in the graph, then by path.

    Args:
        actions: With all ancestors of each that count; every one stands after those that it saw.
    """
    depth = depths_of(actions)
    return sorted(actions, key=lambda a: (depth[a.path], path_order(a.path)))


def depths_of(actions: Iterable[Action]) -> dict[str, int]:
    """Returns the number of edges of the longest way to each action from one that saw none; parents
    come first."""
    depths: dict[str, int] = {}
    for action in actions:
        depths[action.path] = 1 + max(
            (depths[path] for path in action.parents if path in depths), default=-1
        )
    return depths
