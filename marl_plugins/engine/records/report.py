"""The report of a finished run: a table, the reasons of what failed, and the curves, for people and
as files.

report.md    the table, from the metrics; what failed, was lost and was left out, from the ledger
             (engine/records/reasons.py); the load of the last step, from its times (load.py)
curves.png   held-out outcome, rewards, KL and response lengths over the steps
             (engine/records/curves.py)

"Before" and "after" never share a step: the first and the last third of the steps, or the first and
the last of fewer than six; the first evaluation, and the last ones. What is lost to infrastructure
is in no mean and is counted apart.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.files import replace_text
from marl_plugins.core.options import spans
from marl_plugins.engine.records import load, pairs, reasons
from marl_plugins.engine.records.behaviour import alarms
from marl_plugins.engine.records.intervals import mean_of_known
from marl_plugins.engine.records.read import REPORT, RunReader

LAST_EVALUATIONS = 3
TYPE = "eval/type/"
FEW_STEPS = 6
"""With fewer steps than this the first is compared with the last."""

Metrics = Sequence[Mapping[str, Any]]


def summarise(metrics: Metrics, roles: Sequence[str]) -> dict[str, Any]:
    """Compares before and after, as numbers; None where a run has too little of something."""
    steps = [m for m in metrics if m["step"] > 0]
    windows = windows_of(steps)
    parts, terms = named_below(steps, roles, "criterion"), named_below(steps, roles, "reward")
    own = ("score", "reward", "outcome", "calls", "legal")
    names = (*own, "response_length", "truncated", "tool_call_rate", "tool_success")
    evaluations = [m for m in metrics if "eval/tasks" in m]
    evaluated = evaluations[:1], evaluations[1:][-LAST_EVALUATIONS:]

    def pair(name: str, of: Sequence[Metrics] = windows) -> list[float | None]:
        return [_mean(part, name) for part in of]

    return {
        "steps": int(steps[-1]["step"]) if steps else 0,
        "windows": [
            [int(part[0]["step"]), int(part[-1]["step"])] if part else None for part in windows
        ],
        "held_out": held_out(evaluations),
        "roles": {
            role: {
                "held_out": pair(f"eval/outcome/{role}", evaluated),
                **{name: pair(f"role/{role}/{name}") for name in names},
                "parts": {name: pair(f"role/{role}/criterion/{name}") for name in parts[role]},
                "terms": {name: pair(f"role/{role}/reward/{name}") for name in terms[role]},
            }
            for role in roles
        },
        "types": {
            kind.removeprefix(TYPE): pair(kind, evaluated)
            for kind in sorted({name for m in evaluations for name in m if name.startswith(TYPE)})
        },
        "rounds": pair("trajectories/rounds"),
        "lost": [
            int(sum(m.get("trajectories/lost") or 0 for m in part)) if part else None
            for part in windows
        ],
        "alarms": alarm_steps(steps),
        "no_signal": sum(m.get("signal/none") == 1 for m in steps),
        "best": best_of(evaluations),
        "cost": cost_of(steps),
    }


def named_below(steps: Metrics, roles: Sequence[str], kind: str) -> dict[str, list[str]]:
    """Returns the names of each role's metrics of a kind (`criterion`, `reward`), in the order in
    which they were logged."""
    names = dict.fromkeys(name for m in steps for name in m if f"/{kind}/" in name)
    return {
        role: [name.removeprefix(p) for name in names if name.startswith(p)]
        for role in roles
        for p in [f"role/{role}/{kind}/"]
    }


def windows_of(steps: Metrics) -> tuple[Metrics, Metrics]:
    """Returns the steps that are "before" and those that are "after"; a single step is before."""
    if len(steps) < FEW_STEPS:
        return steps[:1], steps[1:][-1:]
    third = len(steps) // 3
    return steps[:third], steps[-third:]


def held_out(evaluations: Metrics) -> dict[str, Any] | None:
    """Returns the first evaluation, and the mean of the last ones; no outcome where no task of them
    has one."""
    if not evaluations:
        return None
    first, last = evaluations[0], evaluations[1:][-LAST_EVALUATIONS:]
    binary = all(m.get("eval/binary", 1) for m in evaluations)
    return {
        "score": "success" if binary else "mean score",
        "tasks": int(first["eval/tasks"]),
        "before": {k: first.get(f"eval/{k}") for k in ("outcome", "low", "high")}
        | {"step": first["step"], "lost": int(first["eval/lost"])},
        "after": {k: _mean(last, f"eval/{k}") for k in ("outcome", "low", "high")}
        | {"lost": int(sum(m["eval/lost"] for m in last))},
        "steps_of_after": [int(m["step"]) for m in last],
        "lost": int(sum(m["eval/lost"] for m in evaluations)),
    }


def alarm_steps(steps: Metrics) -> dict[str, list[int]]:
    """Returns the steps with an alarm, by its name."""
    by_alarm: dict[str, list[int]] = {}
    for m in steps:
        for name in alarms(m):
            by_alarm.setdefault(name, []).append(int(m["step"]))
    return by_alarm


def best_of(evaluations: Metrics) -> dict[str, Any] | None:
    """Returns the step that was kept apart as the best, and the average by which it was; None
    without one."""
    at = {m["step"]: m.get("best/smoothed") for m in evaluations}
    steps = [m["best/step"] for m in evaluations if m.get("best/step")]
    return {"step": int(steps[-1]), "smoothed": at.get(steps[-1])} if steps else None


def cost_of(steps: Metrics) -> float | None:
    """Returns the dollars that were paid for judgements in the whole run: each `.../cost` is what
    its endpoint has cost so far."""
    last = {
        name: m[name] for m in steps for name in m if name.endswith("/cost") and m[name] is not None
    }
    return sum(last.values()) if last else None


def _mean(metrics: Metrics, name: str) -> float | None:
    return mean_of_known(m.get(name) for m in metrics)


def table(summary: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Returns the header and rows of the summary."""
    header = ["", "before", "after"]
    rows = []
    evaluated = summary["held_out"]
    by_role = any(values["held_out"] != [None, None] for values in summary["roles"].values())
    if evaluated and not (
        by_role and evaluated["before"]["outcome"] is evaluated["after"]["outcome"] is None
    ):
        cells = [_held_out_cell(evaluated[when]) for when in ("before", "after")]
        rows.append([f"{evaluated['score']} on {evaluated['tasks']} held-out tasks", *cells])
    rows += [[f"of type {kind}", *map(number, pair)] for kind, pair in summary["types"].items()]
    forms = {
        "held_out": ("held-out outcome", ".3f"),
        "score": ("score", ".3f"),
        "reward": ("reward", ".3f"),
        "outcome": ("outcome in training", ".3f"),
        "calls": ("calls a trajectory", ".2f"),
        "legal": ("answers with their form", ".0%"),
        "response_length": ("tokens per answer", ".1f"),
        "truncated": ("answers cut off", ".0%"),
        "tool_call_rate": ("calls a tool", ".0%"),
        "tool_success": ("tool calls that succeed", ".0%"),
    }
    for role, values in summary["roles"].items():
        for name, (title, form) in forms.items():
            pair = values[name]
            if name == "reward" and pair == values["score"] and not values["terms"]:
                continue
            if name == "outcome" and pair == values["reward"]:
                continue
            if pair == [None, None] or (name in ("truncated", "tool_call_rate") and not any(pair)):
                continue
            if name == "calls" and {*pair} <= {1.0, None}:
                continue
            rows.append([f"{role}: {title}", *(number(value, form) for value in pair)])
            if name == "score":
                rows += [
                    [f"{role}: {part}", *map(number, pair)]
                    for part, pair in values["parts"].items()
                ]
            if name == "reward":
                rows += [
                    [f"{role}: reward, {term}", *map(number, pair)]
                    for term, pair in values["terms"].items()
                ]
    if summary["rounds"] != [None, None]:
        rows.append(["rounds a trajectory", *map(number, summary["rounds"])])
    if any(summary["lost"]):
        lost = (number(count, "d") for count in summary["lost"])
        rows.append(["training trajectories lost", *lost])
    return header, rows


def number(value: float | None, form: str = ".3f") -> str:
    """Writes a number; a dash where there is none."""
    return "-" if value is None else format(value, form)


def _held_out_cell(part: Mapping[str, Any]) -> str:
    known = None not in (part["outcome"], part["low"], part["high"])
    cell = "{outcome:.3f} [{low:.3f}, {high:.3f}]".format(**part) if known else "-"
    return f"{cell}, {part['lost']} lost" if part["lost"] else cell


def markdown(summary: Mapping[str, Any], title: str) -> str:
    """Returns the table as Markdown, with what its columns mean."""
    header, rows = table(summary)
    lines = [f"# {title}", "", *reasons.table(header, rows)]
    below = [
        *pairs.markdown(summary.get("pairs", ())),
        *reasons.markdown(summary.get("reasons", {})),
        *load.markdown(summary.get("load", {}), summary["steps"]),
    ]
    return "\n".join([*lines, "", legend(summary), *below, ""])


def legend(summary: Mapping[str, Any]) -> str:
    """Explains what the columns of the table mean, and what concerns the run as a whole."""
    parts = [_steps(window) for window in summary["windows"] if window]
    sentences = (
        [f"Training metrics of {summary['steps']} steps: {' against '.join(parts)}."]
        if parts
        else []
    )
    evaluated = summary["held_out"]
    if evaluated:
        steps = evaluated["steps_of_after"]
        formula = (
            "Wilson intervals over tasks"
            if evaluated["score"] == "success"
            else "intervals of the mean over tasks"
        )
        sentences.append(
            f"Held-out {evaluated['score']}: step {evaluated['before']['step']:.0f}"
            + (
                f", and the {'mean of the evaluations' if len(steps) > 1 else 'evaluation'} "
                f"{_after(steps)}"
                if steps
                else ""
            )
            + f", with 95 % {formula}."
        )
        if evaluated["lost"]:
            sentences.append(
                f"{evaluated['lost']} evaluation trajectories were lost to infrastructure and are "
                "in no mean."
            )
    sentences += reasons.sentences(summary.get("reasons", {}))
    for name, at in summary["alarms"].items():
        sentences.append(f"Alarm {name} {_after(at)} (docs/metrics.md, Alarms).")
    if best := summary["best"]:
        average = (
            ""
            if best["smoothed"] is None
            else f" ({best['smoothed']:.3f} on average over the evaluations so far)"
        )
        sentences.append(f"Best step: {best['step']}{average}; its weights are in best/.")
    if summary["no_signal"]:
        sentences.append(
            f"{summary['no_signal']} of {summary['steps']} steps had no signal: every advantage "
            "was 0."
        )
    if summary["cost"] is not None:
        sentences.append(f"Judgements cost ${summary['cost']:.2f}.")
    return " ".join(sentences)


def _after(steps: Sequence[int]) -> str:
    """The steps, of which those that follow each other are a range: `after steps 3-9, 12`."""
    return f"after step{'s' if len(steps) > 1 else ''} {spans(steps)}"


def _steps(window: Sequence[int]) -> str:
    first, last = window
    return f"step {first}" if first == last else f"means of steps {first} to {last}"


def write_report(
    folder: Path, roles: Sequence[str], title: str, populations: bool = False
) -> tuple[dict[str, Any], str | None]:
    """Writes `report.md` and `curves.png`, and returns the summary, and what could not be drawn.

    Args:
        populations: Whether several policies play one role.

    Raises:
        ConfigurationError: The metrics cannot be read.
        OSError: A file cannot be written.
    """
    from marl_plugins.engine.records.curves import plot

    run = RunReader(folder)
    metrics = run.metrics()
    summary = summarise(metrics, roles) | {"reasons": reasons.reasons_of(run)}
    summary["load"] = load.load_of(run, summary["steps"])
    if populations and (windows := [window for window in summary["windows"] if window]):
        summary["pairs"] = pairs.pairs_of(run, tuple(windows[-1]))
    replace_text(folder / REPORT, markdown(summary, title))
    fresh = folder / "curves.new.png"
    try:
        plot(metrics, roles, fresh, title)
        os.replace(fresh, folder / "curves.png")
    except ImportError:
        return (
            summary,
            "curves.png is not drawn: matplotlib is not installed (pip install "
            "'openrlhf-marl[plots]')",
        )
    return summary, None
