"""What one run of a workflow on one task leaves behind.

    Task -> Action, Action, ... -> Trajectory

An `Action` is one generation of one role in one turn: the exact ids that were shown and sampled, its tool calls and what
they answered, and the actions whose output it saw (`parents`). Scores, rewards and advantages are written onto it by the
later stages; each field says who writes it.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure

SCHEMA_VERSION = 1
"""Version of the records in `trajectories.jsonl`."""
TIMED = ("seconds", "start", "times")
"""Keys of records whose values are measured, and differ between runs that are otherwise the same."""


@dataclass(frozen=True)
class Task:
    """One data item.

    Args:
        id: Stable name of the item; results are keyed by it.
        prompt: What the agents are asked.
        label: The ground truth; only graders see it.
        metadata: Anything else the recipe needs (JSON values).
        files: What the trajectory's workspace begins with: a name in it, and the file that is copied there.
    """

    id: str
    prompt: str
    label: Any = None
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class File:
    """One file of a trajectory's workspace.

    Args:
        path: Relative to the workspace.
        size: In bytes.
        sha256: Of the content, in hexadecimal digits.
        writer: Path of the action whose call last changed the content; empty: the task's own, or a call of the workflow's.
    """

    path: str
    size: int
    sha256: str
    writer: str


@dataclass(frozen=True)
class ToolResult:
    """What a tool answered.

    Args:
        ok: False when the agent's own call failed (its code raised, ran too long, ...).
        seconds: How long it worked; where a tool does not say, how long the call took.
        files: Names of the files that the call left behind; in a workspace, of those that it wrote.
        start: When the call was made, as in `Action`; None: no tool was called, because there is none of that name or a limit
            was reached.
        failure: Kind of the infrastructure failure to which the call was lost; `cancelled` where its branch of the workflow
            was ended meanwhile, as by the trajectory's deadline.
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
    """What an engine returned for one request.

    Args:
        ids: Sampled token ids, the end-of-sequence token included when it was sampled.
        logprobs: One per id, of the distribution that was sampled from (temperature and top-p applied).
        finish: `stop`, or `length` when the token limit cut it off.
        policy, version: Whose weights the engine held, and of which update.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    policy: str
    version: int


@dataclass(frozen=True)
class Correction:
    """What an action should have been.

    Args:
        coef: Of the cross-entropy on the text that is added to the policy's loss (processes/corrections.py).
    """

    text: str
    coef: float


@dataclass
class Action:
    """One generation of one role in one turn.

    `context_ids + generation.ids` is the very sequence the policy saw and continued. A later turn of the same conversation
    begins with that sequence and stores only what was shown since, so nothing is ever tokenised, or kept, twice; except where
    the model's chat template changes earlier turns (`extends`).
    """

    path: str
    """Names the action within its trajectory by what it is (role, what it saw, how many alike came before), never by when
    it ran: `solver.07c4d1aa`, `coder.1f3a99b0`, `coder.1f3a99b0+1`. Seeds and results are keyed by (task, sample, path)."""
    role: str
    policy: str
    turn: int
    shown_ids: tuple[int, ...]
    """Ids shown since the end of the turn before; the whole context in a first turn, and where `extends` is False."""
    generation: Generation
    text: str
    shown: tuple[tuple[str, str], ...] = ()
    """What was shown since the turn before, as (chat role, text): the opening messages in a first turn."""
    before: Action | None = None
    """The turn before in the same conversation."""
    parents: tuple[str, ...] = ()
    """Paths of the actions whose output this one saw, directly; the turn before in the same conversation is among them."""
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
    """Named parts of the reward, for records and metrics; written by `add_reward`, or by whoever composes a reward."""
    notes: dict[str, Any] = field(default_factory=dict)
    """What plugins record with the action (JSON values), each under its name."""
    correction: Correction | None = None
    """What it should have been, to be trained on beside it; written by `marl_credit`."""
    returns: float | None = None
    """The reward summed over the return scope; written by the estimator's scope."""
    advantage: float | None = None
    """Mean advantage over the action's tokens; written by the trainer, for the records."""
    advantages: tuple[float, ...] = ()
    """One per sampled token; written by the trainer, for the records."""
    left_out: str | None = None
    """Why the action is not trained on, for the ledger."""
    call: int = 0
    """Which call of the role in its conversation: 0 opened it, others continued it (`continues=`)."""
    extends: bool = True
    """Whether the context begins with that of the turn before and what it sampled, token for token. False where the chat
    template shows earlier turns differently once another message follows (thinking that is removed)."""
    offered: str = ""
    """The functions that the chat template shows with the messages (`calls:`), as JSON; in a conversation's first turn."""
    start: float = 0.0
    """When it was asked for, in seconds since the step's rollout began."""
    answered: float = 0.0
    """When it had been generated."""
    end: float = 0.0
    """When its tools had answered, too."""

    def add_reward(self, term: str, value: float) -> None:
        """Add a named term to the action's reward.

        Raises:
            ValueError: The action has no reward; it is not trained on.
        """
        if self.reward is None:
            raise ValueError(f"action {self.path} has no reward to which {term!r} could be added")
        self.reward += value
        self.terms[term] = self.terms.get(term, 0.0) + value

    def change_score(self, score: float, term: str) -> None:
        """Replace the score; the reward, where there is one, changes by as much, as a named term."""
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
    def opening(self) -> tuple[tuple[str, str], ...]:
        """The messages that the action's call began with, as (chat role, text), and the conversation before it; first, as `tools`,
        what the chat template offers."""
        first = root = self
        while root.before is not None:
            root = root.before
            first = root if root.call == self.call else first
        offered = (("tools", root.offered),) if root.offered else ()
        return (*offered, *(first.before.messages if first.before else ()), *first.shown)

    @property
    def messages(self) -> tuple[tuple[str, str], ...]:
        """The whole conversation, this action included, as (chat role, text)."""
        turns = [self]
        while turns[-1].before is not None:
            turns.append(turns[-1].before)
        return tuple(message for turn in reversed(turns) for message in (*turn.shown, ("assistant", turn.text)))

    @property
    def tool_output(self) -> str:
        """What the action's tools answered, as one text; empty without a tool call."""
        return "\n".join(result.output for result in self.tool_results)

    def __str__(self) -> str:
        return self.text


def action_path(role: str, seen: tuple[str, ...], context_ids: Sequence[int], taken: set[str]) -> str:
    """The path of a role's action that saw the actions at paths `seen` in the context `context_ids`.

    `taken` are the paths used so far. Only actions that saw the very same are numbered by arrival, where nothing tells them
    apart anyway.
    """
    digest = hashlib.blake2b("\x1f".join(sorted(seen)).encode(), digest_size=4)
    digest.update(array("q", context_ids).tobytes())
    path = f"{role}.{digest.hexdigest()}"
    if path not in taken:
        return path
    twin = 1
    while f"{path}+{twin}" in taken:
        twin += 1
    return f"{path}+{twin}"


class LostAfter:
    """See `Trajectory.lost_after`. A class, because every trajectory enters two and a generator costs twice as much."""

    def __init__(self, trajectory: Trajectory, seconds: float | None, unfinished: str):
        self.trajectory = trajectory
        self.seconds = seconds
        self.unfinished = unfinished
        self.deadline = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self.deadline.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        try:
            await self.deadline.__aexit__(kind, error, traceback)
        except TimeoutError:  # the deadline's own; one that was raised inside passes
            self.trajectory.lose("deadline", f"{self.unfinished} after {self.seconds} s (limits.task_seconds)")
            return True
        if isinstance(error, InfrastructureFailure):
            self.trajectory.lose(error.kind, str(error))
            return True
        return False


@dataclass
class Trajectory:
    """All actions of one run of a workflow on one task, with their dependency graph and the outcome."""

    task: Task
    sample: int
    step: int
    actions: list[Action] = field(default_factory=list)
    answer: str | None = None
    """What the workflow returned, as text."""
    returned: str | None = None
    """Path of the action that the workflow returned, if it returned one."""
    agent_failure: str | None = None
    infrastructure_failure: str | None = None
    detail: str = ""
    actions_scored: bool = False
    """Whether a scorer judges single actions, so that a missing score stays missing and is not replaced by the outcome."""
    outcome: float | None = None
    """In [0, 1]; written by `marl_score_outcome`. An agent failure scores 0; an infrastructure failure is never scored."""
    outcomes: dict[str, float] = field(default_factory=dict)
    """The outcome of each role, where the scorer gave one per role; `outcome` is then their mean."""
    outcome_parts: dict[str, float] = field(default_factory=dict)
    """Named parts of the outcome (accuracy, F1, ...), where it has several; a grader may write it."""
    files: tuple[File, ...] = ()
    """The files of the workspace, with who wrote them, after the last call."""
    workspace: Path | None = None
    """The folder with these files, until the trajectory has been scored; None also where no call has needed one."""
    tool_results: tuple[ToolResult, ...] = ()
    """What tools answered that the workflow itself called; the agents' are their actions'."""
    place: int = 0
    """The task's place in its step or evaluation; a record does not have it."""
    start: float = 0.0
    """When it began, in seconds since the step's rollout did."""
    seconds: float = 0.0
    """From then until the last score of an action."""
    rollout: float = field(default_factory=time.monotonic, repr=False, compare=False)
    """When the step's rollout began, by `time.monotonic`."""

    def now(self) -> float:
        """Seconds since the step's rollout began."""
        return time.monotonic() - self.rollout

    def outcome_of(self, role: str) -> float | None:
        """What a role's actions are rewarded with: its own outcome where there are outcomes per role, else the team's."""
        return self.outcomes.get(role) if self.outcomes else self.outcome

    def lose(self, kind: str, detail: str) -> None:
        """Lose the trajectory to infrastructure, which counts before the agents' own failure: it is never scored."""
        self.infrastructure_failure, self.detail, self.agent_failure = kind, detail, None

    def lost_after(self, seconds: float | None, unfinished: str) -> LostAfter:
        """`async with`: an infrastructure failure inside, or its deadline, loses the trajectory and raises nothing.

        Args:
            unfinished: What had not happened by the deadline, for the detail.
        """
        return LostAfter(self, seconds, unfinished)

    def sort(self) -> None:
        """Put the actions into an order that depends on the graph alone: by depth, then by path; and the workflow's calls into one
        that depends on their content."""
        self.actions = self._sorted()
        self.tool_results = tuple(sorted(self.tool_results, key=lambda t: (t.tool, t.call, t.output)))

    def _sorted(self) -> list[Action]:
        depth: dict[str, int] = {}
        for action in self.actions:  # an action is appended after everything that it saw
            depth[action.path] = 1 + max((depth[p] for p in action.parents if p in depth), default=-1)
        return sorted(self.actions, key=lambda a: (depth[a.path], a.path))

    def ancestors(self, path: str) -> list[Action]:
        """The actions that the one at `path` depends on, directly or through others, ordered as by `sort`."""
        by_path = {a.path: a for a in self.actions}
        wanted, reached = list(by_path[path].parents), set()
        while wanted:
            parent = wanted.pop()
            if parent not in reached and parent in by_path:
                reached.add(parent)
                wanted += by_path[parent].parents
        return [a for a in self._sorted() if a.path in reached]

    def descendants(self, path: str) -> set[str]:
        """Paths of all actions that depend on the action at `path`, itself included, along the dependency graph."""
        reached = {path}
        for action in self.actions:  # parents come first
            if reached.intersection(action.parents):
                reached.add(action.path)
        return reached

    def record(self) -> dict[str, Any]:
        """The trajectory as JSON values, one line of `trajectories.jsonl`; `from_record` reads it back."""
        return {
            "schema": SCHEMA_VERSION,
            "step": self.step,
            "task": self.task.id,
            "sample": self.sample,
            "prompt": self.task.prompt,
            "label": self.task.label,
            "metadata": self.task.metadata,
            "answer": self.answer,
            "returned": self.returned,
            "outcome": self.outcome,
            "outcomes": self.outcomes,
            "outcome_parts": self.outcome_parts,
            "actions_scored": self.actions_scored,
            "agent_failure": self.agent_failure,
            "infrastructure_failure": self.infrastructure_failure,
            "detail": self.detail,
            "start": self.start,
            "seconds": self.seconds,
            **({"files": [asdict(file) for file in self.files]} if self.files else {}),
            **({"tools": list(map(_tool_record, self.tool_results))} if self.tool_results else {}),
            "actions": [_record(action) for action in self.actions],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Trajectory:
        """Read back what `record` wrote, in this or an earlier release of the same schema; what that left out is empty.

        Raises:
            ValueError: The record is of something else, or has another schema.
            KeyError: A required field is missing.
        """
        if record.get("schema") is None:
            raise ValueError("it is no trajectory; expected a line of a run's trajectories.jsonl, or of its evaluations")
        if record["schema"] != SCHEMA_VERSION:
            raise ValueError(f"a record of schema {record['schema']!r}; this release reads {SCHEMA_VERSION}")
        task = Task(record["task"], record["prompt"], record["label"], record.get("metadata", {}))
        trajectory = cls(task, record["sample"], record["step"])
        for name in ("answer", "outcome", "outcome_parts", "agent_failure", "infrastructure_failure", "detail"):
            setattr(trajectory, name, record[name])
        trajectory.outcomes = dict(record.get("outcomes", {}))
        trajectory.returned = record.get("returned")
        trajectory.start, trajectory.seconds = record.get("start", 0.0), record.get("seconds", 0.0)
        trajectory.tool_results = tuple(map(_tool_result, record.get("tools", ())))
        trajectory.files = tuple(File(**file) for file in record.get("files", ()))
        actions: dict[str, Action] = {}
        for given in record["actions"]:  # an action stands after the one that it continues
            actions[given["action"]] = _action(given, actions)
        trajectory.actions = list(actions.values())
        trajectory.actions_scored = record.get("actions_scored", any(a.score is not None for a in trajectory.actions))
        return trajectory


def _record(action: Action) -> dict[str, Any]:
    """An action as JSON values. Advantages per token are left out where all are the mean, which is recorded."""
    uneven = any(value != action.advantage for value in action.advantages)
    return {
        "action": action.path,
        "role": action.role,
        "policy": action.policy,
        "version": action.generation.version,
        "turn": action.turn,
        "parents": list(action.parents),
        "continues": action.before.path if action.before else None,
        **({"call": action.call} if action.call else {}),
        **({} if action.extends else {"extends": False}),
        **({"offered": action.offered} if action.offered else {}),
        "shown": [list(message) for message in action.shown],
        "shown_ids": list(action.shown_ids),
        "ids": list(action.generation.ids),
        "logprobs": list(action.generation.logprobs),
        "finish": action.generation.finish,
        "text": action.text,
        "times": [action.start, action.answered, action.end],
        "tools": list(map(_tool_record, action.tool_results)),
        "score": action.score,
        "unscored": action.unscored,
        "explanation": action.explanation,
        "reward": action.reward,
        "terms": action.terms,
        "notes": action.notes,
        "return": action.returns,
        "advantage": action.advantage,
        **({"advantages": list(action.advantages)} if uneven else {}),
        "left_out": action.left_out,
    }


def _tool_record(result: ToolResult) -> dict[str, Any]:
    """A call of a tool as JSON values."""
    return {
        "tool": result.tool,
        "call": result.call,
        "output": result.output,
        "ok": result.ok,
        **({"failure": result.failure} if result.failure else {}),
        "start": result.start,
        "seconds": result.seconds,
        "bytes": result.bytes,
        "files": list(result.files),
    }


def _tool_result(record: Mapping[str, Any]) -> ToolResult:
    """The call of a record."""
    return ToolResult(
        tool=record["tool"],
        call=record["call"],
        output=record["output"],
        ok=record["ok"],
        seconds=record.get("seconds", 0.0),
        files=tuple(record.get("files", ())),
        start=record.get("start"),
        failure=record.get("failure", ""),
    )


def _action(record: Mapping[str, Any], earlier: Mapping[str, Action]) -> Action:
    """The action of a record, `earlier` being those read before it."""
    ids = tuple(record["ids"])
    advantage = record["advantage"]
    even = () if advantage is None else (advantage,) * len(ids)
    start, answered, end = record.get("times", (0.0, 0.0, 0.0))
    return Action(
        path=record["action"],
        role=record["role"],
        policy=record["policy"],
        turn=record["turn"],
        shown_ids=tuple(record["shown_ids"]),
        generation=Generation(ids, tuple(record["logprobs"]), record["finish"], record["policy"], record["version"]),
        text=record["text"],
        shown=tuple((role, text) for role, text in record.get("shown", ())),
        before=earlier[record["continues"]] if record["continues"] else None,
        call=record.get("call", 0),
        extends=record.get("extends", True),
        offered=record.get("offered", ""),
        parents=tuple(record["parents"]),
        tool_results=tuple(map(_tool_result, record["tools"])),
        score=record["score"],
        unscored=record.get("unscored", ""),
        explanation=record["explanation"],
        reward=record["reward"],
        terms=dict(record.get("terms", {})),
        notes=dict(record.get("notes", {})),
        returns=record["return"],
        advantage=advantage,
        advantages=tuple(record.get("advantages", even)),
        left_out=record["left_out"],
        start=start,
        answered=answered,
        end=end,
    )
