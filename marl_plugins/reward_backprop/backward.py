"""The backward pass: from a trajectory's outcome along its dependency graph to a contribution of
every action.

    r(sink)   = v / number of sinks
    r(action) = sum over its children c of share(c -> action) * (r(c) - delta(c))

An attributor is given one action and what its children left unexplained; it answers what the action
contributed (delta) and, in words, what remains for those it worked from. Everything a child leaves
unexplained goes to its parents, in equal shares unless the attributor says otherwise; what is left
at the roots is spread by `conserve`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from marl_plugins import Action, Seen, Trajectory, all_of


@dataclass(frozen=True)
class Residual:
    """The residual is what is still to be explained when an action's turn comes.

    Args:
        outcome: The outcome in words, for the whole trajectory.
        value: v, the outcome's value in [-1, 1].
        left: The part of v that reached this action unexplained.
        notes: What the actions that used this one's output passed on, as (role, words).
    """

    outcome: str
    value: float
    left: float
    notes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Attribution:
    """The answer of an attributor about one action.

    Args:
        contribution: delta, in [-1, 1]; negative for blame.
        passed_on: What remains unexplained, in words, for the actions it worked from.
        why: For people.
        to: Which parents the rest goes to, by path; they need not add up to 1. Empty: equal shares.
    """

    contribution: float
    passed_on: str = ""
    why: str = ""
    to: Mapping[str, float] = field(default_factory=dict)


class Attributor(Protocol):
    """Explains one action's part in an outcome; raises `InfrastructureFailure` where that is
    unavailable."""

    async def attribute(self, action: Action, seen: Seen, residual: Residual) -> Attribution: ...


async def backward(
    trajectory: Trajectory, outcome: str, value: float, attributor: Attributor
) -> dict[str, Attribution]:
    """Returns attributions by path; an action is asked about once all that used its output are
    done, others at the same time.

    Raises:
        InfrastructureFailure: An attribution is unavailable, so that the whole decomposition is
            unknown.
    """
    paths = {a.path for a in trajectory.actions}
    parents = {a.path: [p for p in a.parents if p in paths] for a in trajectory.actions}
    children: dict[str, list[str]] = {path: [] for path in parents}
    for path, mine in parents.items():
        for parent in mine:
            children[parent].append(path)
    sinks = [path for path, users in children.items() if not users]
    left: dict[str, float] = {}
    tasks: dict[str, asyncio.Task[Attribution]] = {}
    roles = {a.path: a.role for a in trajectory.actions}

    async def attribute(action: Action) -> Attribution:
        path = action.path
        later = {c: await tasks[c] for c in children[path]}
        arriving = sum(
            (left[c] - a.contribution) * _share(a.to, path, parents[c]) for c, a in later.items()
        )
        left[path] = arriving if later else value / len(sinks)
        notes = tuple((roles[c], a.passed_on) for c, a in later.items() if a.passed_on)
        return await attributor.attribute(
            action, Seen.of(trajectory, action), Residual(outcome, value, left[path], notes)
        )

    for action in reversed(trajectory.actions):  # children come after their parents
        tasks[action.path] = asyncio.ensure_future(attribute(action))
    await all_of(tasks.values())
    return {a.path: tasks[a.path].result() for a in trajectory.actions}


def _share(to: Mapping[str, float], parent: str, parents: Sequence[str]) -> float:
    """The part of what a child leaves that goes to one of its parents."""
    total = sum(w for p, w in to.items() if p in parents and w > 0)
    return max(to.get(parent, 0.0), 0.0) / total if total else 1.0 / len(parents)


def conserve(contributions: Mapping[str, float], value: float) -> dict[str, float]:
    """Returns the contributions that add up to v (MAPPA eq. 7).

    Where all are of v's sign they are rescaled by v / sum: an action without influence stays at 0.
    Otherwise, where blame and credit cancel, point the other way or are all 0, what is lacking is
    spread equally; dividing by a sum of both signs would blow contributions up, or turn blame into
    credit. Either way their order is kept.
    """
    if not contributions:
        return {}
    total = sum(contributions.values())
    sign = 1.0 if value > 0 else -1.0
    if value and total and all(sign * c >= 0.0 for c in contributions.values()):
        return {path: value * (c / total) for path, c in contributions.items()}
    gap = (value - total) / len(contributions)
    return {path: c + gap for path, c in contributions.items()}
