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

SAME = (
    "answer",
    "returned",
    "outcome",
    "outcomes",
    "outcome_parts",
    "actions_scored",
    "agent_failure",
    "infrastructure_failure",
    "detail",
    "start",
    "seconds",
)
"""Keys of a trajectory's record that are called as its attributes. What a record of an earlier
release lacks has the attribute's default."""
ACTION = {
    "action": "path",
    "role": "role",
    "policy": "policy",
    "turn": "turn",
    "text": "text",
    "score": "score",
    "unscored": "unscored",
    "explanation": "explanation",
    "reward": "reward",
    "terms": "terms",
    "notes": "notes",
    "return": "returns",
    "left_out": "left_out",
}
"""By key of an action's record, the attribute."""
RARE = ("call", "extends", "offered", "thought", "defused", "replayed")
"""Attributes of an action that are left out of its record where they are the default."""
TOOL = ("tool", "call", "output", "ok", "failure", "start", "seconds")
"""Of a call of a tool, the same; failure is left out where it is empty."""
SCHEMA_VERSION = 1
"""Version of the records in `trajectories.jsonl`."""


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
        **_known(origin=trajectory.origin, forked=list(trajectory.forked or ())),
        "prompt": trajectory.task.prompt,
        "label": trajectory.task.label,
        "metadata": trajectory.task.metadata,
        **{name: getattr(trajectory, name) for name in SAME},
        **_known(
            files=[asdict(file) for file in trajectory.files],
            tools=list(map(_tool_record, trajectory.tool_results)),
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
    for name in SAME:
        if name in record:
            setattr(trajectory, name, record[name])
    trajectory.origin = record.get("origin", "")
    if "forked" in record:
        path, number = record["forked"]
        trajectory.forked = (path, number)
    trajectory.tool_results = tuple(map(_tool_result, record.get("tools", ())))
    trajectory.files = tuple(File(**file) for file in record.get("files", ()))
    actions: dict[str, Action] = {}
    for action_record in record["actions"]:
        if action_record["continues"] is not None and action_record["continues"] not in actions:
            got = f"action {action_record['action']!r} continues {action_record['continues']!r}"
            raise ValueError(f"{got}, which does not stand before it")
        actions[action_record["action"]] = _action(action_record, actions)
    trajectory.actions = tuple(actions.values())
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
    rare = {name: getattr(action, name) for name in RARE}
    return {
        **{key: getattr(action, name) for key, name in ACTION.items()},
        "version": action.generation.version,
        **_known(newer=[list(change) for change in action.generation.changes]),
        "parents": list(action.parents),
        **_known(derived=list(action.derived)),
        "continues": action.before.path if action.before else None,
        **{name: value for name, value in rare.items() if value != getattr(Action, name)},
        "shown": [list(message) for message in action.shown],
        **tokens,
        "finish": action.generation.finish,
        "times": [action.start, action.answered, action.end],
        "tools": list(map(_tool_record, action.tool_results)),
        "advantage": action.advantages[0] if action.advantages and not uneven else action.advantage,
        **_known(advantages=list(action.advantages) if uneven and tokens else []),
    }


def _known(**values: Any) -> dict[str, Any]:
    """Returns the values that are not empty; a record has no keys of the others."""
    return {name: value for name, value in values.items() if value}


def _tokens(action: Action, trainer_logprobs: bool) -> dict[str, Any]:
    """Returns the ids of an action and their log-probs."""
    return {
        "shown_ids": list(action.shown_ids),
        "ids": list(action.generation.ids),
        "logprobs": spelled(action.generation.logprobs),
        **_known(trainer_logprobs=spelled(action.trainer_logprobs) if trainer_logprobs else []),
    }


def spelled(values: Sequence[float]) -> list[float]:
    """Spells float32 values with the fewest digits that give the same float32; their float64 would
    have seventeen."""
    import numpy as np  # not above: light commands read records

    return [float(str(value)) for value in np.asarray(values, dtype=np.float32)]


def _read(values: Sequence[float]) -> tuple[float, ...]:
    """The float32 values that were spelled, in this or an earlier release; NaN for null, which
    other writers of JSON put there."""
    try:
        return tuple(array("f", values))
    except TypeError:
        return tuple(array("f", (math.nan if value is None else value for value in values)))


def _tool_record(result: ToolResult) -> dict[str, Any]:
    """A call of a tool as JSON values."""
    values = {name: getattr(result, name) for name in TOOL if name != "failure" or result.failure}
    return {**values, "bytes": result.bytes, "files": list(result.files)}


def _tool_result(record: Mapping[str, Any]) -> ToolResult:
    """The call of a record."""
    values = {name: record[name] for name in TOOL if name in record}
    return ToolResult(**values, files=tuple(record.get("files", ())))


def _action(record: Mapping[str, Any], earlier: Mapping[str, Action]) -> Action:
    """The action of a record, `earlier` being those read before it."""
    ids = tuple(record["ids"])
    advantage = record["advantage"]
    even = () if advantage is None else (advantage,) * len(ids)
    start, answered, end = record.get("times", (0.0, 0.0, 0.0))
    values = {name: record[key] for key, name in ACTION.items() if key in record}
    values |= {name: record[name] for name in RARE if name in record}
    return Action(
        **values,
        shown_ids=tuple(record["shown_ids"]),
        generation=Generation(
            ids,
            _read(record["logprobs"]),
            record["finish"],
            record["policy"],
            record["version"],
            tuple((first, version) for first, version in record.get("newer", ())),
        ),
        shown=tuple((role, text) for role, text in record.get("shown", ())),
        before=earlier[record["continues"]] if record["continues"] else None,
        parents=tuple(record["parents"]),
        derived=tuple(record.get("derived", ())),
        tool_results=tuple(map(_tool_result, record["tools"])),
        advantage=advantage,
        advantages=tuple(record.get("advantages", even)),
        trainer_logprobs=_read(record.get("trainer_logprobs", ())),
        start=start,
        answered=answered,
        end=end,
    )
