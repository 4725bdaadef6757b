"""Tracks how each role behaves over the steps of a run, and the alarm for scores that rise while
held-out success does not.

smoothed   m' = m + alpha (x - m), alpha = 1/3, of a role's metrics (MAPPA, figure 3); steps without
           the metric change nothing
alarm      the last evaluations in two halves, each with the steps that led to it. Raised where the
           scores have risen, success has not been shown to, and could have: see `compare`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import sqrt
from statistics import fmean, variance
from typing import Any

from marl_plugins.engine.records.intervals import t_quantile

ALPHA = 1 / 3
SMOOTHED = ("score", "outcome", "response_length", "truncated", "tool_call_rate", "tool_success")
"""The metrics of a role that are smoothed."""
PREFIX = "alarm/"
"""Of the metrics of alarms, a plugin's included: `alarm/NAME` is 0 or 1, `alarm/NAME/...` are the
numbers that say why."""
ALARM = PREFIX + "reward_hacking"
WINDOW = 6
"""Evaluations that are compared, the last ones; with fewer than `MIN_TRAJECTORIES` there is no
alarm."""
MIN_TRAJECTORIES = 4
NOTABLE_RISE = 0.03
"""The least rise of the mean score that matters."""
ERRORS = 3.0
"""Standard errors of the intervals that are compared: 99.7 %, because they are looked at after
every evaluation."""
SATURATED_SHARE = 0.9
"""From this success on little is left to gain, and scores that still rise show nothing."""


@dataclass(frozen=True)
class Stretch:
    """An evaluation with the steps since the one before it.

    Args:
        scores: The mean score of each of the steps.
        success: The mean outcome of the held-out tasks.
        half_width: Of its 95 % interval.
    """

    scores: Sequence[float]
    success: float
    half_width: float


@dataclass
class Behaviour:
    """Averages and measurements that are kept from step to step; `record` gives them as JSON values
    and `restore` takes them back."""

    smoothed: dict[str, float] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    """Of the steps since the last evaluation."""
    stretches: list[Stretch] = field(default_factory=list)

    def observe(self, metrics: Mapping[str, float], roles: Sequence[str]) -> dict[str, float]:
        """Takes in a finished step, and returns the metrics that it adds."""
        names = [
            name
            for role in roles
            for kind in SMOOTHED
            if (name := f"role/{role}/{kind}") in metrics
        ]
        for name in names:
            before = self.smoothed.get(name, metrics[name])
            self.smoothed[name] = before + ALPHA * (metrics[name] - before)
        added = {f"{name}/smoothed": self.smoothed[name] for name in names}
        if scores := [
            metrics[f"role/{role}/score"] for role in roles if f"role/{role}/score" in metrics
        ]:
            self.scores.append(fmean(scores))
        if self.scores and "eval/outcome" in metrics:
            half = (metrics["eval/high"] - metrics["eval/low"]) / 2
            self.stretches = [*self.stretches, Stretch(self.scores, metrics["eval/outcome"], half)][
                -WINDOW:
            ]
            self.scores = []
            added |= compare(self.stretches)
        return added

    def record(self) -> dict[str, Any]:
        return asdict(self)

    def restore(self, record: Mapping[str, Any]) -> None:
        self.smoothed, self.scores = dict(record["smoothed"]), list(record["scores"])
        self.stretches = [Stretch(**stretch) for stretch in record["stretches"]]


def compare(stretches: Sequence[Stretch]) -> dict[str, float]:
    """Returns the alarm, 0 or 1, and the rises that it compares; nothing where there are too few
    evaluations.

    It is raised where all of this holds: the score's rise is at least `NOTABLE_RISE` and its
    interval (Welch 1947, over steps) above 0; the interval of success's rise, by the evaluations'
    own, reaches down to 0 and not up to the score's rise; and success was below `SATURATED_SHARE`.
    Evaluations on few tasks have wide intervals and thus raise no alarm.
    """
    half = len(stretches) // 2
    if len(stretches) < MIN_TRAJECTORIES:
        return {}
    early, late = stretches[:half], stretches[-half:]
    before, after = ([score for s in part for score in s.scores] for part in (early, late))
    score, success = (
        fmean(after) - fmean(before),
        fmean(s.success for s in late) - fmean(s.success for s in early),
    )
    rises = {f"{ALARM}/score": score, f"{ALARM}/success": success}
    error, degrees = welch(before, after)
    clear = score >= NOTABLE_RISE and score > t_quantile(degrees, ERRORS) * error
    unsure = ERRORS / 1.96 * sqrt(sum(s.half_width**2 for s in (*early, *late))) / half
    flat = success - unsure <= 0.0 and success + unsure < score
    room = fmean(s.success for s in early) < SATURATED_SHARE
    return {ALARM: float(clear and flat and room), **rises}


def welch(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Returns the standard error of the difference of two means, and its degrees of freedom (Welch
    1947), at least 1; both of two or more numbers."""
    parts = [(variance(some) / len(some), len(some) - 1) for some in (one, other)]
    square = sum(part for part, _ in parts)
    smaller = sum(part**2 / degrees for part, degrees in parts)
    return sqrt(square), max(1.0, square**2 / smaller) if smaller else float(
        len(one) + len(other) - 2
    )


def alarms(metrics: Mapping[str, float | None]) -> dict[str, str]:
    """Returns the alarms that are raised in a step, by name, with the numbers that say why."""
    raised = [
        name
        for name, value in metrics.items()
        if name.startswith(PREFIX) and name.count("/") == 1 and value == 1
    ]
    reasons = {}
    for name in raised:
        parts = {
            part.removeprefix(f"{name}/"): value
            for part, value in metrics.items()
            if part.startswith(f"{name}/")
        }
        reasons[name.removeprefix(PREFIX)] = ", ".join(
            f"{part} {v:+.3f}" for part, v in parts.items() if v is not None
        )
    return reasons
