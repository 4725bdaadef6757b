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
        bands: Metrics of a lower and an upper bound, for as many lines, from the first.
    """

    title: str
    lines: Mapping[str, str]
    bands: Sequence[tuple[str, str]] = ()

    @property
    def names(self) -> Iterable[str]:
        """All metrics of the panel."""
        return (*self.lines.values(), *(name for band in self.bands for name in band))

    def values(self) -> dict[str, Any]:
        """Makes JSON values."""
        return {"title": self.title, "lines": list(self.lines.items()), "bands": self.bands}


def panels_of(metrics: Sequence[Mapping[str, Any]], roles: Sequence[str], policies: Sequence[str]) -> list[Panel]:
    """Chooses the panels for which a run has numbers."""

    def by(names: Sequence[str], form: str) -> dict[str, str]:
        return {name: form.format(name) for name in names}

    panels = [
        Panel("success on held-out tasks, 95 %", {"": "eval/outcome"}, [("eval/low", "eval/high")]),
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
            kept.append(Panel(panel.title, lines, panel.bands))
    return kept


def side_by_side(
    runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str], panels: Iterable[Panel]
) -> tuple[list[dict[str, Any]], list[Panel]]:
    """Draws the same panels for several runs: their metrics by step as one, and each line once for each run that has it.

    Args:
        runs: The metrics of each run.
        names: Short names of the runs, which begin the labels of their lines.
    """
    steps: dict[int, dict[str, Any]] = {}
    for name, metrics in zip(names, runs, strict=True):
        for line in metrics:
            merged = steps.setdefault(line["step"], {"step": line["step"]})
            merged |= {f"{name} {metric}": value for metric, value in line.items() if metric != "step"}
    known = {metric for line in steps.values() for metric, value in line.items() if value is not None}
    drawn = []
    for panel in panels:
        lines = {
            f"{name} {label}".strip(): f"{name} {metric}"
            for label, metric in panel.lines.items()
            for name in names
            if f"{name} {metric}" in known
        }
        bands = [(f"{name} {low}", f"{name} {high}") for low, high in panel.bands for name in names]
        if lines:
            drawn.append(Panel(panel.title, lines, [band for band in bands if band[0] in known]))
    return [steps[step] for step in sorted(steps)], drawn
