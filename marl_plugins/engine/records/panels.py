"""The curves of a run as panels: which metrics are drawn together, under which names.

One list for `curves.png` (engine/records/curves.py) and for the page of `openrlhf inspect --html`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

Metrics = Sequence[Mapping[str, Any]]

OURS = frozenset(
    {
        "alarm",
        "best",
        "coach",
        "drift",
        "engines",
        "eval",
        "grad_norm",
        "kl",
        "outcome",
        "policy",
        "reward",
        "role",
        "rows",
        "seconds",
        "signal",
        "step",
        "tokens",
        "tokens_per_second",
        "tool",
        "trajectories",
    }
)
"""First words of the metrics in docs/metrics.md; all others are a plugin's own."""
PHASES = ("rollout", "exchange", "advantages", "update", "sync", "wait")
SMOOTHED = "/smoothed"
"""What ends the name of a metric's moving average, where one is logged; the metric itself is then
drawn faintly."""


@dataclass(frozen=True)
class Panel:
    """Metrics that are drawn together.

    Args:
        lines: The metric of each line, by its label.
        bands: Metrics of a lower and an upper bound, for as many lines, from the first.
        crosses: Metrics by their label; a step at which one is above zero has a cross.
        bounds: Of the axis; None: those of the values.
    """

    title: str
    lines: Mapping[str, str]
    bands: Sequence[tuple[str, str]] = ()
    crosses: Mapping[str, str] = field(default_factory=dict)
    bounds: tuple[float, float] | None = None

    @property
    def names(self) -> Iterable[str]:
        """All metrics of the panel."""
        lines = self.lines.values()
        return (
            *lines,
            *(f"{name}{SMOOTHED}" for name in lines),
            *sum(self.bands, ()),
            *self.crosses.values(),
        )

    def values(self) -> dict[str, Any]:
        """Makes JSON values."""
        return {
            "title": self.title,
            "lines": list(self.lines.items()),
            "bands": self.bands,
            "crosses": list(self.crosses.items()),
            "bounds": self.bounds,
        }


def panels_of(metrics: Metrics, roles: Sequence[str]) -> list[Panel]:
    """Chooses the panels for which a run has numbers."""
    steps = [m for m in metrics if m["step"] > 0]
    # those that are named like roles as these are, so that both have the same colour
    policies = sorted(
        {name.split("/")[1] for m in steps for name in m if name.startswith("policy/")},
        key=lambda policy: (roles.index(policy) if policy in roles else len(roles), policy),
    )

    def by(names: Sequence[str], form: str) -> dict[str, str]:
        return {name: form.format(name) for name in names}

    panels = [
        outcome_panel(metrics),
        Panel("held-out outcome of a role", by(roles, "eval/outcome/{}")),
        Panel("outcome of a role in training", by(roles, "outcome/{}")),
        Panel("mean reward of an action", by(roles, "role/{}/reward")),
        Panel("mean score of an action", by(roles, "role/{}/score")),
        Panel("tokens per answer", by(roles, "role/{}/response_length")),
        Panel("answers with a tool call", by(roles, "role/{}/tool_call_rate")),
        Panel("KL to the reference model", by(policies, "policy/{}/kl")),
        Panel("engine against trainer, nats", by(policies, "policy/{}/drift")),
        Panel("gradient norm", by(policies, "policy/{}/actor_grad_norm")),
        Panel("seconds by phase", by(PHASES, "seconds/{}")),
        *(Panel(title, lines) for title, lines in panels_of_plugins(steps).items()),
    ]
    values = {
        name: {value for m in metrics if (value := m.get(name)) is not None}
        for panel in panels
        for name in panel.names
    }
    kept = []
    for panel in panels:
        lines = {label: name for label, name in panel.lines.items() if values[name]}
        crosses = {label: name for label, name in panel.crosses.items() if any(values[name])}
        is_zero = panel.title in ZERO_IS_NOTHING and not any(
            any(values[name]) for name in lines.values()
        )
        if (lines or crosses) and not is_zero:
            kept.append(
                replace(
                    panel,
                    lines=lines,
                    crosses=crosses,
                    bands=panel.bands if values["eval/low"] else (),
                )
            )
    return kept


ZERO_IS_NOTHING = ("answers with a tool call", "KL to the reference model")
"""Panels of what a run without tools, or without a reference model, logs as zero."""


def outcome_panel(metrics: Metrics) -> Panel:
    """Makes the panel of the outcome, held out with its interval and in training."""
    evaluations = [m for m in metrics if "eval/tasks" in m]
    answered = [m for m in evaluations if m.get("eval/outcome") is not None]
    binary = bool(answered) and all(m.get("eval/binary", 1) for m in answered)
    held_out = (
        f"{int(evaluations[0]['eval/tasks'])} held-out tasks, 95 %"
        if evaluations
        else "held-out tasks"
    )
    lost = int(sum(m.get("eval/lost") or 0 for m in evaluations))
    return Panel(
        "success of the system" if binary else "mean outcome",
        {held_out: "eval/outcome", "training": "outcome/mean"},
        [("eval/low", "eval/high")],
        {f"{lost} lost": "eval/lost"},
        (0.0, 1.0),
    )


def panels_of_plugins(steps: Metrics) -> dict[str, dict[str, str]]:
    """Returns a panel for each first word of the metrics that plugins log: its title, and the
    metric of each line."""
    names = sorted({name for m in steps for name in m if name.partition("/")[0] not in OURS})
    panels: dict[str, dict[str, str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        panels.setdefault(first, {})[rest or first] = name
    return {
        title if len(lines) > 1 else next(iter(lines.values())): lines
        for title, lines in panels.items()
    }
