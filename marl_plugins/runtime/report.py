"""What a finished run amounts to: a table and the curves, for people and as files, from `metrics.jsonl` alone.

report.md    the table         curves.png   held-out success and rewards by role over the steps
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

WINDOW = 10
"""Steps at the beginning and at the end that training metrics are averaged over."""
LAST_EVALUATIONS = 3

Metrics = Sequence[Mapping[str, Any]]


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The metrics of all finished steps; step 0 is the evaluation before the first."""
    with (folder / "metrics.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def summarise(metrics: Metrics, roles: Sequence[str]) -> dict[str, Any]:
    """Before and after, as numbers; None where a run has too little of something."""
    evaluations = [m for m in metrics if "eval/outcome" in m]
    steps = [m for m in metrics if m["step"] > 0]
    summary: dict[str, Any] = {"steps": int(steps[-1]["step"]) if steps else 0, "held_out": None, "roles": {}}
    if evaluations:
        last = evaluations[1:][-LAST_EVALUATIONS:] or evaluations
        summary["held_out"] = {
            "tasks": int(evaluations[0]["eval/tasks"]),
            "before": {k: evaluations[0][f"eval/{k}"] for k in ("outcome", "low", "high")}
            | {"step": evaluations[0]["step"]},
            "after": {k: _mean(last, f"eval/{k}") for k in ("outcome", "low", "high")},
            "steps_of_after": [int(m["step"]) for m in last],
            "lost": int(sum(m["eval/lost"] for m in evaluations)),
        }
    for role in roles:
        names = ("reward", "response_length", "tool_call_rate", "tool_success")
        summary["roles"][role] = {
            name: [_mean(part, f"role/{role}/{name}") for part in (steps[:WINDOW], steps[-WINDOW:])] for name in names
        }
    return summary


def _mean(metrics: Metrics, name: str) -> float | None:
    values = [m[name] for m in metrics if m.get(name) is not None]
    return sum(values) / len(values) if values else None


def table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the summary."""
    header = ["", "before", "after"]
    rows = []
    held_out = summary["held_out"]
    if held_out:
        cells = ["{outcome:.3f} [{low:.3f}, {high:.3f}]".format(**held_out[when]) for when in ("before", "after")]
        rows.append([f"success on {held_out['tasks']} held-out tasks", *cells])
    forms: dict[str, tuple[str, Callable[[float], str]]] = {
        "reward": ("reward", lambda v: f"{v:.3f}"),
        "response_length": ("tokens per answer", lambda v: f"{v:.1f}"),
        "tool_call_rate": ("calls a tool", lambda v: f"{v:.0%}"),
        "tool_success": ("tool calls that succeed", lambda v: f"{v:.0%}"),
    }
    for role, values in summary["roles"].items():
        for name, (title, form) in forms.items():
            first, last = values[name]
            if first is None or (name == "tool_call_rate" and not first and not last):
                continue
            rows.append([f"{role}: {title}", form(first), "-" if last is None else form(last)])
    return header, rows


def markdown(summary: Mapping[str, Any], title: str) -> str:
    """The table as Markdown, with what its columns mean."""
    header, rows = table(summary)
    lines = [f"# {title}", "", "| " + " | ".join(header) + " |", "|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([*lines, "", legend(summary), ""])


def legend(summary: Mapping[str, Any]) -> str:
    held_out = summary["held_out"]
    text = f"Training metrics: means of the first and of the last {WINDOW} of {summary['steps']} steps."
    if held_out:
        steps = ", ".join(str(s) for s in held_out["steps_of_after"])
        text += (
            f" Held-out success: step {held_out['before']['step']:.0f}, and the mean of the evaluations after steps {steps}, "
            "with 95 % Wilson intervals over tasks."
        )
    return text


def plot(metrics: Metrics, roles: Sequence[str], path: Path, title: str) -> None:
    """The curves as a PNG.

    Raises:
        ImportError: matplotlib is not installed.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    evaluations = [m for m in metrics if "eval/outcome" in m]
    steps = [m for m in metrics if m["step"] > 0]
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), constrained_layout=True)
    at = [m["step"] for m in steps]
    if any("outcome/mean" in m for m in steps):
        left.plot(at, [m.get("outcome/mean") for m in steps], color="0.75", linewidth=1, label="training rollouts")
    if evaluations:
        x = [m["step"] for m in evaluations]
        left.fill_between(x, [m["eval/low"] for m in evaluations], [m["eval/high"] for m in evaluations], alpha=0.2)
        tasks = int(evaluations[0]["eval/tasks"])
        left.plot(x, [m["eval/outcome"] for m in evaluations], marker="o", label=f"{tasks} held-out tasks, 95 % interval")
    left.set(xlabel="step", ylabel="success of the whole system", ylim=(0, 1))
    for role in roles:
        right.plot(at, [m.get(f"role/{role}/reward") for m in steps], linewidth=1.2, label=role)
    right.set(xlabel="step", ylabel="mean reward of an action")
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="lower right", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def write_report(folder: Path, roles: Sequence[str], title: str) -> tuple[dict[str, Any], str | None]:
    """Write `report.md` and `curves.png`; the summary, and what could not be drawn."""
    metrics = read_metrics(folder)
    summary = summarise(metrics, roles)
    (folder / "report.md").write_text(markdown(summary, title), encoding="utf-8")
    try:
        plot(metrics, roles, folder / "curves.png", title)
    except ImportError:
        return summary, "curves.png is not drawn: matplotlib is not installed (pip install 'openrlhf-marl[plots]')"
    return summary, None
