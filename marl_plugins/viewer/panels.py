"""The curves of a run as panels: which metrics are drawn together, under which names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.records.curves import panels_of_plugins

PHASES = ("rollout", "advantages", "update", "sync")


@dataclass(frozen=True)
class Panel:
    """Metrics that are drawn together.

    Args:
        lines: The metric of each line, by its label.
        band: Metrics of a lower and an upper bound.
    """

    title: str
    lines: Mapping[str, str]
    band: tuple[str, str] | None = None

    @property
    def names(self) -> Iterable[str]:
        """All metrics of the panel."""
        return (*self.lines.values(), *(self.band or ()))

    def values(self) -> dict[str, Any]:
        """Make JSON values."""
        return {"title": self.title, "lines": list(self.lines.items()), "band": self.band}


def panels_of(metrics: Sequence[Mapping[str, Any]], roles: Sequence[str], policies: Sequence[str]) -> list[Panel]:
    """Choose the panels for which a run has numbers."""

    def by(names: Sequence[str], form: str) -> dict[str, str]:
        return {name: form.format(name) for name in names}

    panels = [
        Panel("success on held-out tasks, 95 %", {"": "eval/outcome"}, ("eval/low", "eval/high")),
        Panel("held-out outcome of a role", by(roles, "eval/outcome/{}")),
        Panel("outcome in training", {"": "outcome/mean"}),
        Panel("outcome of a role in training", by(roles, "outcome/{}")),
        Panel("mean reward of an action", by(roles, "role/{}/reward")),
        Panel("mean score of an action", by(roles, "role/{}/score")),
        Panel("tokens per answer", by(roles, "role/{}/response_length")),
        Panel("answers with a tool call", by(roles, "role/{}/tool_call_rate")),
        Panel("KL to the reference model", by(policies, "policy/{}/kl")),
        Panel("engine against trainer, nats", by(policies, "policy/{}/drift")),
        Panel("gradient norm", by(policies, "policy/{}/actor_grad_norm")),
        Panel("seconds by phase", by(PHASES, "seconds/{}")),
        *(Panel(title, lines) for title, lines in panels_of_plugins([m for m in metrics if m["step"] > 0]).items()),
    ]
    known = {name for line in metrics for name, value in line.items() if value is not None}
    kept = []
    for panel in panels:
        lines = {label: name for label, name in panel.lines.items() if name in known}
        if lines:
            kept.append(Panel(panel.title, lines, panel.band))
    return kept
