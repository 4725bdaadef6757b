"""The panels of several runs, drawn over each other."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marl_plugins.engine.records.panels import Panel


def side_by_side(
    runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str], panels: Iterable[Panel]
) -> tuple[list[dict[str, Any]], list[Panel]]:
    """Draws the same panels for several runs: their metrics by step as one, and each line once for
    each run that has it.

    Args:
        runs: The metrics of each run.
        names: Short names of the runs, which begin the labels of their lines.
    """
    steps: dict[int, dict[str, Any]] = {}
    for name, metrics in zip(names, runs, strict=True):
        for line in metrics:
            merged = steps.setdefault(line["step"], {"step": line["step"]})
            merged |= {
                f"{name} {metric}": value for metric, value in line.items() if metric != "step"
            }
    known = {
        metric for line in steps.values() for metric, value in line.items() if value is not None
    }
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
            drawn.append(
                replace(
                    panel,
                    lines=lines,
                    bands=[band for band in bands if band[0] in known],
                    crosses={},
                )
            )
    return [steps[step] for step in sorted(steps)], drawn
