"""A trajectory as plain values to be shown: one shape for the terminal and for the page.

What is here is derived from the records alone, so a run is shown as it was recorded, whatever recipe and models are where now.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from marl_plugins.core.trajectory import Action, ToolResult, Trajectory


def trajectory_values(trajectory: Trajectory) -> dict[str, Any]:
    """Make JSON values of a trajectory; its actions stand in the order of the dependency graph."""
    depths, lanes = places_of(trajectory.actions)
    return {
        "step": trajectory.step,
        "task": trajectory.task.id,
        "sample": trajectory.sample,
        "prompt": trajectory.task.prompt,
        "label": trajectory.task.label,
        "metadata": trajectory.task.metadata,
        "answer": trajectory.answer,
        "returned": trajectory.returned,
        "outcome": finite(trajectory.outcome),
        "outcomes": {role: finite(value) for role, value in trajectory.outcomes.items()},
        "parts": {name: finite(value) for name, value in trajectory.outcome_parts.items()},
        "agent_failure": trajectory.agent_failure,
        "infrastructure_failure": trajectory.infrastructure_failure,
        "detail": trajectory.detail,
        "seconds": trajectory.seconds,
        "files": [{"path": f.path, "bytes": f.size, "writer": f.writer} for f in trajectory.files],
        "tools": [tool_values(result) for result in trajectory.tool_results],
        "actions": [action_values(a, depths[a.path], lanes[a.path]) for a in trajectory.actions],
    }


def action_values(action: Action, depth: int, lane: int) -> dict[str, Any]:
    """Make JSON values of an action, without its tokens.

    Args:
        depth: Number of actions on the longest path to it.
        lane: Number of its conversation.
    """
    return {
        "action": action.path,
        "role": action.role,
        "policy": action.policy,
        "version": action.generation.version,
        "turn": action.turn,
        "depth": depth,
        "lane": lane,
        "parents": list(action.parents),
        "continues": action.before.path if action.before else None,
        "shown": [list(message) for message in action.shown],
        "text": action.text,
        "finish": action.generation.finish,
        "tools": [tool_values(result) for result in action.tool_results],
        "tokens_shown": len(action.context_ids),
        "tokens_sampled": len(action.generation.ids),
        "times": [action.start, action.answered, action.end],
        "score": finite(action.score),
        "unscored": action.unscored,
        "explanation": action.explanation,
        "notes": action.notes,
        "terms": {name: finite(value) for name, value in action.terms.items()},
        "reward": finite(action.reward),
        "return": finite(action.returns),
        "advantage": finite(action.advantage),
        "left_out": action.left_out,
    }


def tool_values(result: ToolResult) -> dict[str, Any]:
    """Make JSON values of a tool's call."""
    return {
        "tool": result.tool,
        "call": result.call,
        "output": result.output,
        "status": result.status,
        "seconds": result.seconds,
        "files": list(result.files),
    }


def places_of(actions: Sequence[Action]) -> tuple[dict[str, int], dict[str, int]]:
    """Return for each action, by path, its depth in the dependency graph and the number of its conversation."""
    depths: dict[str, int] = {}
    lanes: dict[str, int] = {}
    for action in actions:
        depths[action.path] = 1 + max((depths[p] for p in action.parents if p in depths), default=-1)
        before = action.before.path if action.before else None
        lanes[action.path] = lanes[before] if before in lanes else len(set(lanes.values()))
    return depths, lanes


def finite(value: float | None) -> float | None:
    """Return a number, or None for one that is not finite and so has no place in JSON."""
    return value if value is not None and math.isfinite(value) else None


def number(value: float | None, digits: int = 3, sign: bool = False) -> str:
    """Write a number with few digits; a dash where there is none."""
    return "-" if value is None else f"{value:{'+' if sign else ''}.{digits}f}"


def note_text(value: Any) -> str:
    """Write a note of a plugin on one line."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping) and all(isinstance(part, int | float | str | None) for part in value.values()):
        return ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    return json.dumps(value, ensure_ascii=False)


def _short(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
