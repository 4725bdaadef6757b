"""The load of each policy's engines over a rollout: how many of its requests were in flight, by
tenths of the rollout's time, queued ones included (FlexMARL, sections 8.3 and 8.4)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.records import reasons
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.trace import trace_of

PARTS = 10


def load_of(run: RunReader, step: int) -> dict[str, list[float]]:
    """Returns, by policy, the number of its requests in a step, and the mean of those in flight in
    each tenth of the time to the last answer; nothing of a step that was recorded without times."""
    try:
        asked = [action for action in trace_of(run, Filter((step, step))) if action.policy]
    except ConfigurationError:
        return {}
    width = max((action.answered for action in asked), default=0.0) / PARTS
    counts = Counter(action.policy for action in asked)
    in_flight: dict[str, list[float]] = defaultdict(lambda: [0.0] * PARTS)
    for action in asked if width else ():
        for part in range(PARTS):
            end, start = min(action.answered, (part + 1) * width), max(action.start, part * width)
            in_flight[action.policy][part] += max(0.0, end - start) / width
    return {policy: [counts[policy], *in_flight[policy]] for policy in sorted(in_flight)}


def markdown(load: Mapping[str, Sequence[float]], step: int) -> list[str]:
    """Returns the lines of the report's section; none without a load."""
    if not load:
        return []
    header = ["policy", "requests", *(f"{100 * n // PARTS} %" for n in range(PARTS))]
    rows = [
        [name, f"{count:.0f}", *(f"{n:.1f}" for n in of)] for name, (count, *of) in load.items()
    ]
    return [
        "",
        f"## Load of step {step}",
        "",
        *reasons.table(header, rows),
        "",
        "Requests in flight, those that wait for an engine included, from each tenth of the "
        "rollout's time to the next.",
    ]
