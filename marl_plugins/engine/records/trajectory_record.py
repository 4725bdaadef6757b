"""Trajectories as JSON values, one line of `trajectories.jsonl` each, and back."""

from __future__ import annotations

import math
import reprlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from marl_plugins.core.trajectory import Action, File, Generation, Task, ToolResult, Trajectory
from marl_plugins.engine.records.record_form import check_form

SCHEMA_VERSION = 1
"""Version of the records in `trajectories.jsonl`."""
TIMED = ("seconds", "start", "times")
"""Keys of records whose values are measured, and differ between runs that are otherwise the
same."""


def to_record(
    trajectory: Trajectory, trainer_logprobs: bool = True, tokens: bool = True
) -> dict[str, Any]:
    """Turns a trajectory into JSON values, one line of `trajectories.jsonl`; `from_record` reads it
    back.

    Args:
        trainer_logprobs: Whether the trainer's log-probs are written where there are any; the
            engine's always are.
        tokens: Whether there is a value per token; without them the record is for readers, and
            cannot be read back.
    """
    return {
        "schema": SCHEMA_VERSION,
        "step": trajectory.step,
        "task": trajectory.task.id,
        "sample": trajectory.sample,
        **({"origin": trajectory.origin} if trajectory.origin else {}),
        "prompt": trajectory.task.prompt,
        "label": trajectory.task.label,
        "metadata": trajectory.task.metadata,
        "answer": trajectory.answer,
        "returned": trajectory.returned,
        "outcome": trajectory.outcome,
        "outcomes": trajectory.outcomes,
        "outcome_parts": trajectory.outcome_parts,
        "actions_scored": trajectory.actions_scored,
        "agent_failure": trajectory.agent_failure,
        "infrastructure_failure": trajectory.infrastructure_failure,
        "detail": trajectory.detail,
        "start": trajectory.start,
        "seconds": trajectory.seconds,
        **({"files": [asdict(file) for file in trajectory.files]} if trajectory.files else {}),
        **(
            {"tools": list(map(_tool_record, trajectory.tool_results))}
            if trajectory.tool_results
            else {}
        ),
        "actions": [
            _record(action, _tokens(action, trainer_logprobs) if tokens else {})
            for action in trajectory.actions
        ],
    }


def from_record(record: Mapping[str, Any]) -> Trajectory:
    """Reads back what `to_record` wrote, in this or an earlier release of the same schema; what
    that left out is empty.

    Raises:
        ValueError: The record is of something else, has another schema, or another form
            (engine/records/record_form.py).
    """
    check_schema(record.get("schema"))
    check_form(record)
    task = Task(record["task"], record["prompt"], record["label"], record.get("metadata", {}))
    trajectory = Trajectory(task, record["sample"], record["step"])
    for name in (
        "answer",
        "outcome",
        "outcome_parts",
        "agent_failure",
        "infrastructure_failure",
        "detail",
    ):
        setattr(trajectory, name, record[name])
    trajectory.origin = record.get("origin", "")
    trajectory.outcomes = dict(record.get("outcomes", {}))
    trajectory.returned = record.get("returned")
    trajectory.start, trajectory.seconds = record.get("start", 0.0), record.get("seconds", 0.0)
    trajectory.tool_results = tuple(map(_tool_result, record.get("tools", ())))
    trajectory.files = tuple(File(**file) for file in record.get("files", ()))
    actions: dict[str, Action] = {}
    for action_record in record["actions"]:
        if action_record["continues"] is not None and action_record["continues"] not in actions:
            got = f"action {action_record['action']!r} continues {action_record['continues']!r}"
            raise ValueError(f"{got}, which does not stand before it")
        actions[action_record["action"]] = _action(action_record, actions)
    trajectory.actions = tuple(actions.values())
    trajectory.actions_scored = record.get(
        "actions_scored", any(a.score is not None for a in trajectory.actions)
    )
    return trajectory


def check_schema(version: object) -> None:
    """Checks the schema of a record.

    Args:
        version: Its number; None where the record has none.

    Raises:
        ValueError: The record is of something else, or of another schema.
    """
    if version is None:
        raise ValueError(
            "it is no trajectory; expected a line of a run's trajectories.jsonl, or of its "
            "evaluations"
        )
    if version != SCHEMA_VERSION:
        raise ValueError(
            f"a record of schema {reprlib.repr(version)}; this release reads {SCHEMA_VERSION}"
        )


def _record(action: Action, tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Turns an action into JSON values. Advantages per token are left out where all are the same,
    which is then `advantage`.

    Args:
        tokens: Its values per token, where they are written.
    """
    uneven = len(set(action.advantages)) > 1
    return {
        "action": action.path,
        "role": action.role,
        "policy": action.policy,
        "version": action.generation.version,
        **(
            {"newer": [list(change) for change in action.generation.changes]}
            if action.generation.changes
            else {}
        ),
        "turn": action.turn,
        "parents": list(action.parents),
        **({"derived": list(action.derived)} if action.derived else {}),
        "continues": action.before.path if action.before else None,
        **({"call": action.call} if action.call else {}),
        **({} if action.extends else {"extends": False}),
        **({"offered": action.offered} if action.offered else {}),
        "shown": [list(message) for message in action.shown],
        **tokens,
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
        "advantage": action.advantages[0] if action.advantages and not uneven else action.advantage,
        **({"advantages": list(action.advantages)} if uneven and tokens else {}),
        "left_out": action.left_out,
    }


def _tokens(action: Action, trainer_logprobs: bool) -> dict[str, Any]:
    """Returns the ids of an action and their log-probs."""
    return {
        "shown_ids": list(action.shown_ids),
        "ids": list(action.generation.ids),
        "logprobs": spelled(action.generation.logprobs),
        **(
            {"trainer_logprobs": spelled(action.trainer_logprobs)}
            if trainer_logprobs and action.trainer_logprobs
            else {}
        ),
    }


def spelled(values: Sequence[float]) -> list[float]:
    """Spells float32 values with the fewest digits, nine at most, that give the same float32; their
    float64 would have seventeen."""
    return [_shortest(value) for value in array("f", values)]


def _shortest(value: float) -> float:
    """A decimal of few digits that is the same float32."""
    for digits in (7, 8):
        short = float(f"{value:.{digits}g}")
        if array("f", (short,))[0] == value:
            return short
    return float(f"{value:.9g}")


def _read(values: Sequence[float]) -> tuple[float, ...]:
    """The float32 values that were spelled, in this or an earlier release; NaN for null, which
    other writers of JSON put there."""
    try:
        return tuple(array("f", values))
    except TypeError:
        return tuple(array("f", (math.nan if value is None else value for value in values)))


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
        **({"diff": result.diff} if result.diff else {}),
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
        diff=record.get("diff", ""),
    )


def _changes(record: Mapping[str, Any]) -> tuple[tuple[int, int], ...]:
    """Returns where the weights changed in the middle of a recorded answer."""
    return tuple((first, version) for first, version in record.get("newer", ()))


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
        generation=Generation(
            ids,
            _read(record["logprobs"]),
            record["finish"],
            record["policy"],
            record["version"],
            _changes(record),
        ),
        text=record["text"],
        shown=tuple((role, text) for role, text in record.get("shown", ())),
        before=earlier[record["continues"]] if record["continues"] else None,
        call=record.get("call", 0),
        extends=record.get("extends", True),
        offered=record.get("offered", ""),
        parents=tuple(record["parents"]),
        derived=tuple(record.get("derived", ())),
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
        trainer_logprobs=_read(record.get("trainer_logprobs", ())),
        left_out=record["left_out"],
        start=start,
        answered=answered,
        end=end,
    )
