"""Effects and scans as text for people, and as records for the viewer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scipy.stats import false_discovery_control

from marl_plugins.commands.fork.effects import Effect
from marl_plugins.commands.fork.originals import numbered
from marl_plugins.core.files import replace_text
from marl_plugins.core.recipe.texts import json_line
from marl_plugins.core.redaction import inert
from marl_plugins.engine.records.intervals import Bounds
from marl_plugins.engine.records.trajectory_record import to_record

MOST_WORDS, WORD_CHARS = 4, 60
"""Different answers of an arm that are shown, and characters of each."""
FALSE_DISCOVERIES = 0.05
"""Expected share of false ones among the effects that are told from 0."""


def lines_of(effect: Effect) -> Iterator[str]:
    """Yields what is told of one action."""
    t, a = effect.original, effect.action
    score = "" if a.score is None else f", its score {a.score:g}"
    yield (
        f"{numbered(t, a)} ({a.path}) of {t.task.id}, sample {t.sample}: outcome then "
        f"{t.outcome_of(a.role):g}{score}"
    )
    for arm in effect.arms:
        told = arm.outcomes and f"{arm.mean:.2f} {bounds(arm.interval(effect.binary))}"
        count = "the one outcome that it can have" if arm.fixed else f"{len(arm.outcomes)} forks"
        left = "".join(f", {n} {why}" for why, n in arm.left_out.most_common())
        yield f"  {arm.name:<13} outcome {told or '-'}  {count}{left}"
        words = arm.words.most_common()
        said = [f"{shortened(text)} x{n}" for text, n in words[:MOST_WORDS]]
        more = [f"{len(words) - MOST_WORDS} others"] if len(words) > MOST_WORDS else []
        yield f"  {'':<13} said {', '.join([*said, *more]) or 'nothing'}"
    if effect.refused:
        yield f"  no number: {inert(effect.refused)}"
        return
    paired = f", as of pairs {bounds(effect.paired, True)}" if effect.paired else ""
    yield (
        f"  what this action caused: {effect.value:+.2f} {bounds(effect.interval(), True)}{paired}"
        f"; so many forks can show {effect.smallest:.2f}"
    )


def table_of(effects: Sequence[Effect]) -> Iterator[str]:
    """Yields a line for each action of one trajectory; those whose effect is told from 0, all of
    them considered, are marked."""
    counted = [e for e in effects if not e.refused]
    adjusted = adjusted_p(counted)
    yield f"{'action':<24} {'as recorded':>11} {'anew':>6} {'effect':>7} {'95 %':<15} {'p':>6}"
    for effect in effects:
        name = f"{effect.action.path} ({numbered(effect.original, effect.action)})"
        if effect.refused:
            yield f"{name:<24} no number: {inert(effect.refused)}"
            continue
        p = adjusted[effect]
        yield (
            f"{name:<24} {effect.arms[0].mean:>11.2f} {effect.arms[1].mean:>6.2f} "
            f"{effect.value:>+7.2f} {bounds(effect.interval(), True):<15} {p:>6.3f}"
            f"{' *' if p <= FALSE_DISCOVERIES else ''}"
        )
    yield (
        f"* told from 0; of all that are, {FALSE_DISCOVERIES:.0%} are expected not to be (p "
        "adjusted over the actions, Benjamini and Hochberg 1995)"
    )


def adjusted_p(effects: Sequence[Effect]) -> dict[Effect, float]:
    """Returns p values as of all of the effects together (Benjamini and Hochberg 1995)."""
    ps = [effect.p for effect in effects]
    return dict(zip(effects, map(float, false_discovery_control(ps)), strict=True)) if ps else {}


def scan_lines(account: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yields the table of a scan."""
    heads = ("effect", "score~effect", "by ranks", "outcome~effect", "reliab.", "corr.")
    widths = (7, 19, 19, 19, 7, 6)
    cells = " ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))
    yield f"{'role':<12} {'actions':>7} {cells}"
    for role, of in account.items():
        values = (
            signed(of["effect"]),
            *(with_bounds(of[name]) for name in ("pearson", "spearman", "outcome")),
            signed(of["reliability"]),
            signed(of["corrected"]),
        )
        cells = " ".join(f"{value:>{width}}" for value, width in zip(values, widths, strict=True))
        yield f"{role:<12} {of['actions']:>7} {cells}"
    if whole := account.get("all"):
        for name, what in {"full_marks": "full marks", "less": "less"}.items():
            if whole[name]:
                count, mean = whole[name]
                yield f"mean effect where the score is {what}: {mean:+.2f} ({count} actions)"
    yield (
        "score~effect: Pearson's correlation with its 95 % interval over trajectories; corr.: as "
        "of effects measured without noise"
    )


def with_bounds(values: Sequence[float | None]) -> str:
    """Writes a value with its interval."""
    value, low, high = values
    return signed(value) + ("" if low is None or high is None else f" {bounds((low, high), True)}")


def signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2f}"


def bounds(interval: Bounds, sign: bool = False) -> str:
    """Writes an interval."""
    plus = "+" if sign else ""
    return f"[{interval[0]:{plus}.2f}, {interval[1]:{plus}.2f}]"


def shortened(text: str) -> str:
    """Writes an answer on one line, harmless to a terminal."""
    line = repr(inert(text))
    return line if len(line) <= WORD_CHARS else f"{line[: WORD_CHARS - 3]}..."


def write(file: Path, effects: Sequence[Effect], step: int | None) -> None:
    """Writes originals, each followed by its forks, in the form of a run's records.

    Args:
        step: The one that their evaluation followed; None: they are of training.
    """
    lines: list[str] = []
    seen: set[int] = set()
    for effect in effects:
        forks = [fork for arm in effect.arms for fork in arm.forks]
        first = [] if id(effect.original) in seen else [effect.original]
        seen.add(id(effect.original))
        for trajectory in (*first, *forks):
            record = to_record(trajectory) | ({} if step is None else {"step": step})
            lines.append(json_line(record) + "\n")
    replace_text(file, "".join(lines))
