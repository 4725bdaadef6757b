"""The bias monitor: does the coach prefer a type of task, beyond what success explains? (MAPPA, section 4.1 and table 3)

A task's type is its `metadata["type"]`. For each role the scores of a type are held against those of the other types, beside the
same difference of the outcomes. Types may differ in difficulty, so the bias is what is left after success:

    s_ij = m_j + b o_ij + e        s the mean score of a role on a task in a step, o the mean outcome there, j the type
    bias_j = m_j - mean of m_k over the other types, at the same outcome

by least squares with one slope b for all types: analysis of covariance (Fisher 1932), with its interval. Sums are kept, no scores;
they fade by `DECAY` a step, so that the monitor follows agents that change. An unbiased coach may have a bias here where a type's
steps are worse at the same outcome; what is said is that success does not explain the difference.

`--coach.debias` takes out of every score how far its type's m_j lies from the mean of all types, where the interval of 95 % says
that it does. It is that of the steps before, so that the order in which verdicts arrive does not matter. What is measured is always
the coach's own score, before anything is taken out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf, isfinite, sqrt
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl_plugins.core.intervals import t_quantile

if TYPE_CHECKING:
    from marl_plugins.coach.metrics import Judged
    from marl_plugins.core.trajectory import Trajectory

DECAY = 0.95
"""What a step's numbers count a step later: together they count as much as the last twenty steps."""
LEAST = 10.0
"""Tasks of a type, as they count now, below which nothing is said of it."""
FORGOTTEN = 0.01
"""Tasks of a type, as they count, below which it is not kept either: ids as types would be more and more."""
RELEVANT = 0.05
"""A smaller bias raises no alarm: half a point of ten."""
ALARM_ERRORS = 4.0
"""Standard errors between an alarm and 0: it is looked for after every step, in every role and type."""
TERM = "debias"
"""What a score is changed by, among the terms of the reward."""


@dataclass
class Sums:
    """Of the tasks of one type, each with its weight w: a score s and an outcome o of a role."""

    w: float = 0.0
    ww: float = 0.0
    s: float = 0.0
    o: float = 0.0
    ss: float = 0.0
    so: float = 0.0
    oo: float = 0.0

    def add(self, score: float, outcome: float) -> None:
        self.w, self.ww = self.w + 1.0, self.ww + 1.0
        self.s, self.o = self.s + score, self.o + outcome
        self.ss, self.so, self.oo = self.ss + score * score, self.so + score * outcome, self.oo + outcome * outcome

    def fade(self) -> None:
        for name, value in vars(self).items():
            setattr(self, name, value * (DECAY**2 if name == "ww" else DECAY))

    @property
    def count(self) -> float:
        """How many equally weighted tasks say as much (Kish 1965)."""
        return self.w * self.w / self.ww if self.ww else 0.0

    @property
    def within(self) -> tuple[float, float, float]:
        """Sums of squares and products of the deviations from the type's means, of as many tasks as `count`: ss, so, oo."""
        s, o = self.s / self.w, self.o / self.w
        found = max(0.0, self.ss / self.w - s * s), self.so / self.w - s * o, max(0.0, self.oo / self.w - o * o)
        return found[0] * self.count, found[1] * self.count, found[2] * self.count


@dataclass(frozen=True)
class Difference:
    """A type against others, for a role.

    Args:
        score, success: Difference of the mean scores and of the mean outcomes.
        bias: Difference of the scores at the same outcome.
        error: Its standard error.
        degrees: Of freedom.
    """

    score: float
    success: float
    bias: float
    error: float
    degrees: float

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        half = t_quantile(self.degrees, z) * self.error
        return self.bias - half, self.bias + half

    def clear(self, z: float = 1.96) -> bool:
        """Whether the interval of z standard errors leaves 0 out."""
        low, high = self.interval(z)
        return low > 0 or high < 0


@dataclass
class BiasMonitor:
    """By role and type, what has been seen; `record` gives it as JSON values and `restore` takes it back."""

    sums: dict[str, dict[str, Sums]] = field(default_factory=dict)

    def observe(self, step: Iterable[tuple[Trajectory, Judged]]) -> None:
        """Take in a step's verdicts: of each role one mean score a task, because samples of a task are no independent ones."""
        found: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
        for trajectory, judged in step:
            kind, outcome = type_of(trajectory), trajectory.outcome_of(judged.action.role)
            if kind is not None and judged.verdict is not None and outcome is not None:
                key = judged.action.role, kind, trajectory.task.id
                found.setdefault(key, []).append((judged.verdict.share, outcome))
        for role, types in self.sums.items():
            for sums in types.values():
                sums.fade()
            self.sums[role] = {kind: sums for kind, sums in types.items() if sums.w >= FORGOTTEN}
        for (role, kind, _), pairs in sorted(found.items()):
            scores, outcomes = zip(*pairs, strict=True)
            self.sums.setdefault(role, {}).setdefault(kind, Sums()).add(fmean(scores), fmean(outcomes))

    def differences(self, role: str) -> dict[str, Difference]:
        """Each type against the mean of the others; empty with fewer than two types."""
        known = self._known(role)
        if len(known) < 2:
            return {}
        others = dict.fromkeys(known, -1.0 / (len(known) - 1))
        found = {kind: contrast(known, {**others, kind: 1.0}) for kind in known}
        return {kind: d for kind, d in found.items() if isfinite(d.error)}

    def corrections(self, role: str) -> dict[str, float]:
        """What is too much in the scores of each type: how far it lies from the mean of all types, where that is clear."""
        known = self._known(role)
        if len(known) < 2:
            return {}
        even = dict.fromkeys(known, -1.0 / len(known))
        found = {kind: contrast(known, {**even, kind: 1.0 - 1.0 / len(known)}) for kind in known}
        return {kind: d.bias for kind, d in found.items() if d.clear()}

    def _known(self, role: str) -> dict[str, Sums]:
        return {kind: sums for kind, sums in sorted(self.sums.get(role, {}).items()) if sums.w >= LEAST}

    def metrics(self) -> dict[str, float]:
        """The table: by role and type the differences and the bias with its interval; and the alarm.

        Of two types one line says it all: that of the first in alphabetical order.
        """
        found: dict[str, float] = {}
        reasons: dict[str, float] = {}
        for role in sorted(self.sums):
            table = self.differences(role)
            for kind, d in list(table.items())[: 1 if len(table) == 2 else None]:
                low, high = d.interval()
                name = f"{role}/{kind}"
                found |= {f"coach/bias/{name}/score": d.score, f"coach/bias/{name}/success": d.success}
                found |= {f"coach/bias/{name}": d.bias, f"coach/bias/{name}/low": low, f"coach/bias/{name}/high": high}
                if abs(d.bias) >= RELEVANT and d.clear(ALARM_ERRORS):
                    reasons[f"alarm/coach_bias/{name}"] = d.bias
        return {**found, "alarm/coach_bias": float(bool(reasons)), **reasons} if found else {}

    def record(self) -> dict[str, Any]:
        return {role: {kind: asdict(sums) for kind, sums in types.items()} for role, types in self.sums.items()}

    def restore(self, record: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        self.sums = {r: {kind: Sums(**sums) for kind, sums in types.items()} for r, types in record.items()}


def contrast(sums: Mapping[str, Sums], weights: Mapping[str, float]) -> Difference:
    """A weighted sum of types' means, the weights adding up to 0, with what of it the outcomes explain taken out.

    b = sum_j within_j(s, o) / sum_j within_j(o, o)
    error^2 = v (sum_j c_j^2 / n_j + (sum_j c_j mean_j(o))^2 / sum_j within_j(o, o))      v the residual variance
    """
    score = sum(c * sums[kind].s / sums[kind].w for kind, c in weights.items())
    success = sum(c * sums[kind].o / sums[kind].w for kind, c in weights.items())
    ss, so, oo = map(sum, zip(*(one.within for one in sums.values()), strict=True))
    varies = oo > 1e-9
    slope, explained = (so / oo, so * so / oo) if varies else (0.0, 0.0)
    degrees = max(1.0, sum(one.count for one in sums.values()) - len(sums) - varies)
    spread = sum(c * c / sums[kind].count for kind, c in weights.items())
    if varies:
        spread += success * success / oo
    elif abs(success) > 1e-9:  # each type has one outcome, so nothing tells the two apart
        spread = inf
    return Difference(score, success, score - slope * success, sqrt(max(0.0, ss - explained) / degrees * spread), degrees)


def type_of(trajectory: Trajectory) -> str | None:
    """The type of a trajectory's task, if its metadata name one."""
    kind = trajectory.task.metadata.get("type")
    return None if kind is None else str(kind)


def debias(monitor: BiasMonitor, step: Sequence[tuple[Trajectory, Judged]]) -> None:
    """Take the bias of the steps before out of a step's scores, within [0, 1]."""
    corrections = {role: monitor.corrections(role) for role in {judged.action.role for _, judged in step}}
    for trajectory, judged in step:
        action, excess = judged.action, corrections[judged.action.role].get(type_of(trajectory) or "", 0.0)
        if action.score is not None and excess:
            action.change_score(min(1.0, max(0.0, action.score - excess)), TERM)
