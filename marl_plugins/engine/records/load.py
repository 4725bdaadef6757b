"""The load of each policy's engines over a rollout: how many of its requests were in flight, by
tenths of the rollout's time, queued ones included (FlexMARL, sections 8.3 and 8.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.records import reasons
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.trace import trace_of

PARTS = 10


def load_of(run: RunReader, step: int) -> dict[str, list[float]]:
    """Returns, by policy, the number of its requests in a step, the share of the time to the last
    answer in which any was in flight, and the mean of those in flight in each tenth of that time;
    nothing where there is no record."""
    try:
        asked = [action for action in trace_of(run, Filter((step, step))) if action.policy]
    except ConfigurationError:
        return {}
    end = max((action.answered for action in asked), default=0.0)
    load: dict[str, list[float]] = defaultdict(lambda: [0.0] * (2 + PARTS))
    busy_until: dict[str, float] = defaultdict(float)
    for action in asked if end else ():  # as they were asked for
        of, until = load[action.policy], busy_until[action.policy]
        of[0] += 1
        of[1] += max(0.0, action.answered - max(action.start, until)) / end
        busy_until[action.policy] = max(action.answered, until)
        for part in range(PARTS):
            last, first = (end * (part + 1) / PARTS, end * part / PARTS)
            overlap = min(action.answered, last) - max(action.start, first)
            of[2 + part] += max(0.0, overlap) / (last - first)
    return dict(sorted(load.items()))


def markdown(load: Mapping[str, Sequence[float]], step: int) -> list[str]:
    """Returns the lines of the report's section; none without a load."""
    if not load:
        return []
    header = ["policy", "requests", "busy", *(f"{100 * n // PARTS} %" for n in range(PARTS))]
    rows = [
        [name, f"{count:.0f}", f"{busy:.2f}", *(f"{n:.1f}" for n in of)]
        for name, (count, busy, *of) in load.items()
    ]
    return [
        "",
        f"## Load of step {step}",
        "",
        *reasons.table(header, rows),
        "",
        "Requests in flight, those that wait for an engine included, from each tenth of the "
        "rollout's time to the next; busy: the share of it with any.",
    ]
