"""Outcomes of games by pair of policies: how each member of a population does against each other
one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any

from marl_plugins.engine.records import reasons
from marl_plugins.engine.records.read import Filter, RunReader, Steps


def pairs_of(run: RunReader, steps: Steps) -> list[dict[str, Any]]:
    """Returns, for every two policies that played different roles of one trajectory, the mean
    outcome of the first over all their roles, and the number of outcomes; nothing where outcomes
    are the team's, or where no two pairs differ.

    Args:
        steps: First and last step, of training.

    Raises:
        ConfigurationError: The records cannot be read.
    """
    by_pair: dict[tuple[str, str], list[float]] = defaultdict(list)
    for trajectory in run.trajectories(Filter(steps)):
        if trajectory.forked:
            continue  # it repeats what its original has done
        players = {action.role: action.policy for action in trajectory.actions}
        played = [role for role in trajectory.outcomes if role in players]
        for mine, other in permutations(played, 2):
            by_pair[players[mine], players[other]].append(trajectory.outcomes[mine])
    if len({frozenset(pair) for pair in by_pair}) < 2:
        return []
    return [
        {
            "policy": policy,
            "against": against,
            "outcome": sum(values) / len(values),
            "outcomes": len(values),
        }
        for (policy, against), values in sorted(by_pair.items())
    ]


def markdown(pairs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns the lines of the report's section; none without pairs."""
    if not pairs:
        return []
    names = sorted({pair["policy"] for pair in pairs})
    cells = {(p["policy"], p["against"]): f"{p['outcome']:.3f} ({p['outcomes']})" for p in pairs}
    rows = [[name, *(cells.get((name, other), "-") for other in names)] for name in names]
    return [
        "",
        "## Outcomes by pair of policies",
        "",
        *reasons.table(["policy \\ against", *names], rows),
        "",
        "Mean outcome of the row's policy, and how many.",
    ]
