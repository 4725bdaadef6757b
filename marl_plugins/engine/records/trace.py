"""The trace of what a run asked of its engines and tools, and when: a load on which schedules and
layouts can be compared.

A trace is JSON Lines, one action a line, by step and in the order in which they were asked for; so
what an action depends on stands before it. `TracedAction.model_validate_json` reads a line. Times
are seconds since the step's rollout began.

    start        the action is asked for; all its parents have ended
    answered     its last token has been sampled
    end          its tools have answered too

Calls of tools that the workflow itself makes are a line without a role.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any

from pydantic import BaseModel, ConfigDict

from marl_plugins.core.trajectory import ToolResult, Trajectory
from marl_plugins.engine.records.read import EVERYTHING, Filter, RunReader


class TracedCall(BaseModel):
    """One call of a tool.

    `seconds` is how long the tool worked, or the call took; `bytes` the size of the answer;
    `status` is `ok`, `failed`, or the kind of the infrastructure failure.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    tool: str
    status: str
    start: float
    seconds: float
    bytes: int


class TracedAction(BaseModel):
    """One action, named by (step, task, sample, action, fork); `parents` are actions of the same
    trajectory."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    task: str
    sample: int
    action: str = ""
    fork: str = ""
    role: str = ""
    policy: str = ""
    parents: tuple[str, ...] = ()
    start: float
    answered: float
    end: float
    tokens_in: int = 0
    tokens_out: int = 0
    tools: tuple[TracedCall, ...] = ()


def trace_of(run: RunReader, selection: Filter = EVERYTHING) -> Iterator[TracedAction]:
    """Yields the trace of the recorded actions that are wanted.

    Args:
        selection: The calls of a workflow have no role and no policy: they are left out where one
            is asked for.

    Raises:
        ConfigurationError: A file is missing, or a line cannot be read.
    """
    for _, steps in groupby(run.recorded(selection), lambda record: record.step):
        actions: list[TracedAction] = []
        for record in steps:
            actions += traced(record.value, selection)
        yield from sorted(actions, key=lambda action: action.start)


def traced(trajectory: Trajectory, selection: Filter = EVERYTHING) -> Iterator[TracedAction]:
    """Yields the actions of a trajectory, and the calls of its workflow."""
    of: dict[str, Any] = {
        "step": trajectory.step,
        "task": trajectory.task.id,
        "sample": trajectory.sample,
        "fork": fork_of(trajectory),
    }
    if not selection.of_actions and (calls := _calls(trajectory.tool_results)):
        start, end = (
            min(call.start for call in calls),
            max(call.start + call.seconds for call in calls),
        )
        yield TracedAction(**of, start=start, answered=start, end=end, tools=calls)
    for action in filter(selection.has_action, trajectory.actions):
        if action.replayed:
            continue  # nobody was asked for it
        yield TracedAction(
            **of,
            action=action.path,
            role=action.role,
            policy=action.policy,
            parents=action.parents,
            start=action.start,
            answered=action.answered,
            end=action.end,
            tokens_in=len(action.context_ids),
            tokens_out=len(action.generation.ids),
            tools=_calls(action.tool_results),
        )


def fork_of(trajectory: Trajectory) -> str:
    """Returns which fork a trajectory is, as `path:number`; empty for one that is none."""
    return "{}:{}".format(*trajectory.forked) if trajectory.forked else ""


def _calls(results: Iterable[ToolResult]) -> tuple[TracedCall, ...]:
    """The calls that were made."""
    return tuple(
        TracedCall(tool=r.tool, status=r.status, start=r.start, seconds=r.seconds, bytes=r.bytes)
        for r in results
        if r.start is not None
    )
