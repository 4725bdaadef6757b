"""The curves of a run as one picture over the steps.

Outcome, rewards, KL or gradients, response lengths; where there are any, scores, tool calls, and what plugins log of their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
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


def plot(metrics: Metrics, roles: Sequence[str], path: Path, title: str) -> None:
    """Draws `curves.png`.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import MaxNLocator

    steps = [m for m in metrics if m["step"] > 0]
    more = {
        "mean score of an action": {role: f"role/{role}/score" for role in roles},
        "answers with a tool call": {role: f"role/{role}/tool_call_rate" for role in roles},
    }
    more = {title: names for title, names in more.items() if any(m.get(n) for m in steps for n in names.values())}
    more |= panels_of_plugins(steps)
    rows = 2 + math.ceil(len(more) / 2)
    figure, panels = pyplot.subplots(rows, 2, figsize=(12, 3.5 * rows), sharex=True, layout="constrained")
    (top_left, top_right), (bottom_left, bottom_right) = panels[:2]
    for axes, (title_of, names) in zip(panels[2:].flat, more.items(), strict=False):
        _lines(axes, steps, names)
        axes.set_ylabel(title_of)
    for axes in panels[2:].flat[len(more) :]:
        axes.set_axis_off()
    evaluations = [m for m in metrics if "eval/tasks" in m]
    if any("outcome/mean" in m or "eval/outcome" in m or m.get("eval/lost") for m in metrics):
        _outcome(top_left, steps, evaluations)
        _lines(top_left, evaluations, {role: f"eval/outcome/{role}" for role in roles})
    else:  # a zero-sum game has only the roles'
        held_out = any(f"eval/outcome/{role}" in m for m in evaluations for role in roles)
        prefix = "eval/outcome" if held_out else "outcome"
        _lines(top_left, evaluations if held_out else steps, {role: f"{prefix}/{role}" for role in roles})
        top_left.set_ylabel("mean outcome on held-out tasks" if held_out else "mean outcome in training")
    policies = sorted({name.split("/")[1] for m in steps for name in m if name.startswith("policy/")}, key=_place(roles))
    kl = any(m.get(f"policy/{policy}/kl") for m in steps for policy in policies)
    _lines(top_right, steps, {role: f"role/{role}/reward" for role in roles})
    _lines(bottom_left, steps, {p: f"policy/{p}/{'kl' if kl else 'actor_grad_norm'}" for p in policies})
    _lines(bottom_right, steps, {role: f"role/{role}/response_length" for role in roles})
    top_right.set_ylabel("mean reward of an action")
    bottom_left.set_ylabel("KL to the reference model" if kl else "gradient norm")
    bottom_right.set_ylabel("tokens per answer")
    for column in panels.T:
        lowest = [axes for axes in column if axes.axison][-1]
        lowest.set_xlabel("step")
        lowest.tick_params(labelbottom=True)
    for axes in panels.flat:
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, frameon=False, fontsize="small")
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def panels_of_plugins(steps: Metrics) -> dict[str, dict[str, str]]:
    """Returns a panel for each first word of the metrics that plugins log: its title, and the metric of each line."""
    names = sorted({name for m in steps for name in m if name.partition("/")[0] not in OURS})
    panels: dict[str, dict[str, str]] = {}
    for name in names:
        first, _, rest = name.partition("/")
        panels.setdefault(first, {})[rest or first] = name
    return {title if len(lines) > 1 else next(iter(lines.values())): lines for title, lines in panels.items()}


def _place(roles: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    """Sorts policies that are named like roles as these are, so that both have the same colour."""
    return lambda policy: (list(roles).index(policy) if policy in roles else len(roles), policy)


def _outcome(axes: Any, steps: Metrics, evaluations: Metrics) -> None:
    """The outcome in training and in evaluations; a gap and a cross where an evaluation lost something."""
    if evaluations:
        names = ("step", "eval/outcome", "eval/low", "eval/high")
        x, mean, low, high = ([_value(m, name) for m in evaluations] for name in names)
        tasks = int(evaluations[0]["eval/tasks"])
        axes.fill_between(x, low, high, alpha=0.2, color="C0", linewidth=0)
        if any("eval/outcome" in m for m in evaluations):
            axes.plot(x, mean, marker="o", color="C0", label=f"{tasks} held-out tasks, 95 %")
        if lost := [m for m in evaluations if m["eval/lost"]]:
            label = f"{sum(int(m['eval/lost']) for m in lost)} lost"
            at, foot = [m["step"] for m in lost], [0.02] * len(lost)
            axes.plot(at, foot, linestyle="", marker="x", markersize=8, color="C3", label=label, clip_on=False)
    if any("outcome/mean" in m for m in steps):
        _line(axes, steps, "outcome/mean", "training", color="C1", linestyle="--", zorder=3)
    answered = [m for m in evaluations if "eval/outcome" in m]
    binary = bool(answered) and all(m.get("eval/binary", 1) for m in answered)
    axes.set(ylabel="success of the system" if binary else "mean outcome", ylim=(0, 1))


def _lines(axes: Any, steps: Metrics, names: Mapping[str, str]) -> None:
    """A line each; where there is a smoothed one the raw numbers are faint behind it."""
    for n, (label, name) in enumerate(names.items()):
        if any(m.get(f"{name}/smoothed") is not None for m in steps):
            _line(axes, steps, f"{name}/smoothed", label, color=f"C{n}")
            _line(axes, steps, name, "_", color=f"C{n}", alpha=0.3)
        elif any(m.get(name) is not None for m in steps):
            _line(axes, steps, name, label, color=f"C{n}")


def _line(axes: Any, steps: Metrics, name: str, label: str, **style: Any) -> None:
    marker = "." if len(steps) < 40 else ""
    axes.plot(
        [m["step"] for m in steps], [_value(m, name) for m in steps], linewidth=1.2, marker=marker, label=label, **style
    )


def _value(metrics: Mapping[str, Any], name: str) -> float:
    """A number, or a gap in the line."""
    value = metrics.get(name)
    return math.nan if value is None else float(value)
