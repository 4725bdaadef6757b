"""Effects and scans as text for people, made from their JSON values; and as records for the
viewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.commands.fork.effects import Effect
from marl_plugins.core.files import replace_text
from marl_plugins.core.recipe.texts import json_line
from marl_plugins.core.redaction import inert
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.records.trajectory_record import to_record

MOST_WORDS, WORD_CHARS = 4, 60
"""Different answers of an arm that are shown, and characters of each."""
HEADING = "## Scores against effects"
"""Of a scan in a run's report."""


def lines_of(effect: Mapping[str, Any]) -> Iterator[str]:
    """Yields what is told of one action (`Effect.values`)."""
    yield (
        f"{effect['name']} ({effect['action']}) of {effect['task']}, sample {effect['sample']}: "
        f"outcome then {number(effect['outcome_then'])}, score {number(effect['score'])}"
    )
    for name, arm in effect["arms"].items():
        left = "".join(f", {count} {why}" for why, count in arm["left_out"].items())
        fixed = ", which cannot vary" if arm["fixed"] else ""
        outcome = f"{number(arm['outcome'])} {bounds(arm['interval'])}"
        yield f"  {name:<13} outcome {outcome}  of {arm['counted']}{left}{fixed}"
        words = [f"{shortened(text)} x{count}" for text, count in arm["said"].items()]
        more = [f"{len(words) - MOST_WORDS} others"] if len(words) > MOST_WORDS else []
        yield f"  {'':<13} said {', '.join([*words[:MOST_WORDS], *more]) or 'nothing'}"
    if effect["refused"]:
        yield f"  no number: {inert(effect['refused'])}"
        return
    paired = f", as of pairs {bounds(effect['paired'])}" if effect["paired"] else ""
    caused = f"{number(effect['effect'])} {bounds(effect['interval'])}"
    yield (
        f"  what this action caused: {caused}{paired}; p "
        f"{effect['p_adjusted']:.3f}; so many forks can show {effect['smallest_shown']:.2f}"
    )


def scan_lines(account: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of a scan (scan.py)."""
    names = ("pearson", "spearman", "outcome", "reliability", "corrected")
    yield f"{'role':<12} {'actions':>7} {'effect':>7}" + "".join(f"{name:>21}" for name in names)
    for role, of in account.items():
        cells = "".join(f"{value_and_bounds(of[name]):>21}" for name in names)
        yield f"{role:<12} {of['actions']:>7} {number(of['effect']):>7}{cells}"
        for name in ("full_marks", "less"):
            if of[name]:
                count, mean = of[name]
                yield f"{'':<12} {count:>7} {number(mean):>7}  {name.replace('_', ' ')}"


def add_to_report(report: Path, about: str, account: Mapping[str, Mapping[str, Any]]) -> None:
    """Puts a scan at the end of a run's report, in the place of an earlier one."""
    before = report.read_text("utf-8").partition(HEADING)[0].rstrip()
    table = "\n".join(f"    {line}" for line in scan_lines(account))
    how = "How to read it: `openrlhf docs fork`."
    replace_text(report, f"{before}\n\n{HEADING}\n\n{about} {how}\n\n{table}\n")


def value_and_bounds(value: Any) -> str:
    """Writes a number, or one with the ends of its interval."""
    if not isinstance(value, list):
        return number(value)
    return number(value[0]) + (f" {bounds(value[1:])}" if None not in value else "")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def bounds(interval: Sequence[float] | None) -> str:
    """Writes an interval."""
    return f"[{interval[0]:+.2f}, {interval[1]:+.2f}]" if interval else ""


def shortened(text: str) -> str:
    """Writes an answer on one line, harmless to a terminal."""
    line = repr(inert(text))
    return line if len(line) <= WORD_CHARS else f"{line[: WORD_CHARS - 3]}..."


def write(file: Path, effects: Sequence[Effect], step: int | None) -> None:
    """Writes originals, each followed by its forks, in the form of a run's records.

    Args:
        step: The one that their evaluation followed; None: they are of training.
    """
    trajectories: dict[Trajectory, None] = {}
    for effect in effects:
        forks = [fork for arm in effect.arms for fork in arm.forks]
        trajectories |= dict.fromkeys([effect.original, *forks])
    followed = {} if step is None else {"step": step}
    lines = [json_line(to_record(t) | followed) + "\n" for t in trajectories]
    replace_text(file, "".join(lines))
