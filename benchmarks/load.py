"""How skewed the load of a run is, and how long its tails are: `python -m benchmarks.load FILE`

FILE is what `openrlhf export RUN --table trace --to FILE` has written. By role its share of the
actions and of the sampled tokens, and median, 95th percentile and maximum of what it was shown,
what it sampled, and how long that took, alone and with its tools; by tool the same of its calls.
And how many actions were in progress at once.
"""

from __future__ import annotations

import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.engine.records.trace import TracedAction


def read_trace(path: Path) -> list[TracedAction]:
    """The lines of a trace."""
    return [TracedAction.model_validate_json(line) for line in path.open(encoding="utf-8")]


def spread(values: Sequence[float], unit: str = "") -> str:
    """Median, 95th percentile and maximum."""
    ordered = sorted(values)
    found = (statistics.median(ordered), ordered[-(-95 * len(ordered) // 100) - 1], ordered[-1])
    return " / ".join(f"{value:.3g}" for value in found) + unit


def most_at_once(actions: Sequence[TracedAction]) -> int:
    """The greatest number of actions of one step that were in progress at the same time."""
    greatest = 0
    for step in {action.step for action in actions}:
        mine = [action for action in actions if action.step == step]
        changes = sorted([(a.start, 1) for a in mine] + [(a.end, -1) for a in mine])
        running = 0
        for _, change in changes:  # at the same time ends come first
            running += change
            greatest = max(greatest, running)
    return greatest


def main(path: Path) -> None:
    found = read_trace(path)
    by_role: dict[str, list[TracedAction]] = defaultdict(list)
    by_tool = defaultdict(list)
    for action in found:
        if action.role:
            by_role[action.role].append(action)
        for call in action.tools:
            by_tool[call.tool].append(call)
    total, tokens = sum(map(len, by_role.values())), sum(action.tokens_out for action in found)
    print(
        f"{total} actions of {len({(a.step, a.task, a.sample) for a in found})} trajectories, "
        f"{most_at_once(found)} at once"
    )
    print(
        "| role | actions | tokens | shown | sampled | generation | with tools "
        "|\n|---|---|---|---|---|---|---|"
    )
    for role, mine in sorted(by_role.items(), key=lambda item: -len(item[1])):
        columns = [
            f"{len(mine) / total:.1%}",
            f"{sum(a.tokens_out for a in mine) / max(1, tokens):.1%}",
            spread([a.tokens_in for a in mine]),
            spread([a.tokens_out for a in mine]),
            spread([a.answered - a.start for a in mine], " s"),
            spread([a.end - a.start for a in mine], " s"),
        ]
        print(f"| {role} | {' | '.join(columns)} |")
    for tool, calls in sorted(by_tool.items()):
        lost = sum(call.status not in ("ok", "failed") for call in calls)
        took, size = (
            spread([call.seconds for call in calls], " s"),
            spread([call.bytes for call in calls], " bytes"),
        )
        print(f"tool {tool}: {len(calls)} calls, {lost} lost, {took}, {size}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
