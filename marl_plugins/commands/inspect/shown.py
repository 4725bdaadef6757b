"""A trajectory as plain values to be shown: one shape for the terminal and for the page.

What is here is derived from the records alone, so a run is shown as it was recorded, whatever
recipe and models are where now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marl_plugins.commands.inspect.index import name_of
from marl_plugins.core.files import finite
from marl_plugins.core.trajectory import Action, ToolResult, Trajectory, depths_of
from marl_plugins.engine.records.trajectory_record import to_record


def trajectory_values(trajectory: Trajectory) -> dict[str, Any]:
    """Makes JSON values of a trajectory: its record without tokens, and what is shown of it
    besides.

    Actions get their place in the dependency graph (`depth`: the number of actions on the longest
    path to it; `lane`: the number of its conversation) and their numbers of tokens, calls of tools
    their `status`.
    """
    values: dict[str, Any] = finite(
        {"files": [], "tools": []} | to_record(trajectory, tokens=False)
    )
    values["task"] = name_of(trajectory.task.id, trajectory.origin, trajectory.forked)
    depths, lanes = depths_of(trajectory.actions), lanes_of(trajectory.actions)
    _add_status(values["tools"], trajectory.tool_results)
    for shown, action in zip(values["actions"], trajectory.actions, strict=True):
        shown |= {
            "depth": depths[action.path],
            "lane": lanes[action.path],
            "tokens_shown": len(action.context_ids),
            "tokens_sampled": len(action.generation.ids),
        }
        _add_status(shown["tools"], action.tool_results)
    return values


def _add_status(shown: Sequence[dict[str, Any]], results: Sequence[ToolResult]) -> None:
    for call, result in zip(shown, results, strict=True):
        call["status"] = result.status


def lanes_of(actions: Sequence[Action]) -> dict[str, int]:
    """Returns the number of each action's conversation, by path."""
    lanes: dict[str, int] = {}
    for action in actions:
        before = action.before.path if action.before else None
        lanes[action.path] = lanes[before] if before in lanes else len(set(lanes.values()))
    return lanes


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Writes a number with few digits; a dash where there is none, or none that is finite."""
    return (
        "-"
        if value is None or not math.isfinite(value)
        else f"{value:{'+' if sign else ''}.{digits}f}"
    )


def note_text(value: Any) -> str:
    """Writes a note of a plugin on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(
        isinstance(part, int | float | str | None) for part in value.values()
    ):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return json.dumps(value, ensure_ascii=False)


def _short(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
