"""The curves of a run as one picture over the steps: the panels of engine/records/panels.py, drawn
by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.engine.records.panels import SMOOTHED, Metrics, Panel, panels_of

FEW_PANELS = 6
"""Up to so many stand in two columns, more in three."""
FEW_STEPS = 40
"""With fewer each is marked by a dot."""


def plot(metrics: Metrics, roles: Sequence[str], path: Path, title: str) -> None:
    """Draws `curves.png`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    panels = panels_of(metrics, roles)
    columns = 2 if len(panels) <= FEW_PANELS else 3
    rows = max(1, math.ceil(len(panels) / columns))
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(6 * columns if columns == 2 else 16, 3.5 * rows),
        squeeze=False,
        layout="constrained",
    )
    for axes, panel in zip(grid.flat, panels, strict=False):
        draw(axes, panel, metrics)
        axes.set_title(panel.title, loc="left", fontsize="medium")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(
                loc="upper left",
                bbox_to_anchor=(0, -0.08),
                ncols=4,
                frameon=False,
                fontsize="small",
            )
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in grid.flat[len(panels) :]:
        axes.set_axis_off()
    figure.suptitle(f"{title}, by step")
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def draw(axes: Any, panel: Panel, metrics: Metrics) -> None:
    """Draws the bands, lines and crosses of a panel; a gap where a step that has the metric has no
    value."""
    for n, (low, high) in enumerate(panel.bands):
        known = [m for m in metrics if low in m]
        steps, bounds = (
            [m["step"] for m in known],
            [[_value(m, name) for m in known] for name in (low, high)],
        )
        axes.fill_between(steps, *bounds, alpha=0.2, color=f"C{n}", linewidth=0)
    for n, (label, name) in enumerate(panel.lines.items()):
        is_smoothed = any(m.get(f"{name}{SMOOTHED}") is not None for m in metrics)
        if is_smoothed:
            _line(axes, metrics, f"{name}{SMOOTHED}", label, color=f"C{n}")
        _line(
            axes,
            metrics,
            name,
            "_" if is_smoothed else label,
            color=f"C{n}",
            alpha=0.3 if is_smoothed else 1.0,
        )
    for n, (label, name) in enumerate(panel.crosses.items()):
        at = [m["step"] for m in metrics if m.get(name)]
        foot = panel.bounds[0] if panel.bounds else 0.0
        axes.plot(
            at,
            [foot] * len(at),
            linestyle="",
            marker="x",
            markersize=8,
            color=f"C{n + 3}",
            label=label,
            clip_on=False,
        )
    if panel.bounds:
        axes.set_ylim(*panel.bounds)


def _line(axes: Any, metrics: Metrics, name: str, label: str, **style: Any) -> None:
    known = [m for m in metrics if name in m]
    marker = "." if len(known) < FEW_STEPS else ""
    values = [_value(m, name) for m in known]
    axes.plot(
        [m["step"] for m in known], values, linewidth=1.2, marker=marker, label=label, **style
    )


def _value(metrics: Mapping[str, Any], name: str) -> float:
    """Returns a number, or a gap in the line."""
    value = metrics.get(name)
    return math.nan if value is None else float(value)
