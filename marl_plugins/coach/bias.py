"""The bias monitor: does the coach prefer a type of task, beyond what success can explain? (MAPPA,
section 4.1 and table 3)

A task's type is its `metadata["type"]`. For each role and each task i of type j, with s and o the
mean score and the mean outcome of the task's samples, and q the probability of success there, which
cannot be seen:

    s_i = m_j + b q_i + e_i        o_i = q_i + coin_i        bias of type j: m_j - mean of m_k over
        the other types

An outcome is a coin, so the slope of s on o is too small by an unknown factor (attenuation). Taking
out that slope would call a coach biased whose scores are the true quality. The slopes b that the
data allow are therefore an interval:

    repeats    different samples of a task share q alone, so their products hold no coin (errors in
               variables, Fuller 1987): b = sum_i P_i / sum_i V_i, with P_i of a score and another
               sample's outcome, V_i of two outcomes;
               the interval is Fieller's (1954): all b at which sum_i (P_i - b V_i) is within its
               error of 0
    bound      cov(s, o) / var(o) <= b: all the noise is in the outcomes (Frisch 1934). His other
               bound, var(s) / cov(s, o), holds only for a coach that does not see the coin: one
               whose scores are half the quality and half the outcome lies above it
    else       0 <= b <= MOST_SLOPE: a score rises with quality, and by no more than quality does,
               unless the repeats show that it does

A type has a bias only where m differs for every slope that is left. Where there are few repeats, or
all tasks of a type are equally hard, many slopes are left, and a difference in difficulty cannot be
told from a bias: this is said (`unclear`) and raises no alarm. Errors are by task, so a task that
returns counts once. Sums of tasks are kept, no scores; they fade by `BIAS_DECAY_PER_STEP` a step.

`--coach.debias` takes out of every score how far its type's m_j lies from the mean of all types,
where this test finds a bias in the steps before, so that the order in which verdicts arrive does
not matter. What is measured is always the coach's own score, before anything is taken out.

Does it prefer long answers (section 4.4)? The same test, with what is longer and what is shorter
than the role's mean of the step as the two types (where lengths are few, many answers have the
median itself, and would be neither): longer answers may well be better, and only what success does
not explain is a bias. Both types hold samples of the same tasks, whose own effects are alike in
both, so the errors are rather too large. It is reported, and nothing is taken out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import hypot, sqrt
from statistics import NormalDist, fmean
from typing import TYPE_CHECKING, Any

from marl_plugins import t_quantile

if TYPE_CHECKING:
    from marl_plugins import Trajectory
    from marl_plugins.coach.metrics import JudgedAction

BIAS_DECAY_PER_STEP = 0.95
"""What a step's numbers count a step later: together they count as much as the last twenty
steps."""
LEAST_TASKS = 6.0
"""Tasks of a type, as equally weighted ones, below which nothing is said of it."""
FORGOTTEN = 0.1
"""What the samples of a task count, together, below which it is not kept."""
LOOKED_THROUGH = 10
"""Steps from one look for such tasks to the next."""
RELEVANT_BIAS = 0.02
"""A bias that may be smaller raises no alarm: a fifth of a point of ten, as much as scores that are
not linear in quality make."""
MOST_SLOPE = 1.0
"""The most that a score may rise with the probability of success."""
FALSE_ALARMS, LOOKS = 0.05, 20
"""Share of runs of an unbiased coach that may have an alarm, and as how many independent looks the
steps of a run count."""
SLOPE_ERRORS = 2.5
"""Standard errors of the interval of slopes."""
SUM_ROUNDING = 1e-9
"""Sums of squares below this are 0."""
TERM = "debias"
"""What a score is changed by, among the terms of the reward."""

Samples = list[tuple[float, float]]
"""Score and outcome of each sample of a task."""
KindOf = Callable[["Trajectory", str], str | None]
TaskSums = list[float]
"""Of the samples of a task, each with its weight w as of `step`: step, w, w^2, s, o, so, o^2."""


@dataclass(frozen=True)
class Interval:
    """An interval from `low` to `high`."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


@dataclass(frozen=True)
class Difference:
    """A type against others, for a role.

    Args:
        score, success: Difference of the mean scores and of the mean outcomes.
        bias: Difference of the scores at the same quality, in the middle of the slopes.
        interval: It lies in it for all slopes, with their errors.
        other: The other type where there are two; empty where there are more.
        unclear: Whether one slope makes it clear that it is not 0, and another one does not.
    """

    score: float
    success: float
    bias: float
    interval: Interval
    other: str
    unclear: bool

    @property
    def is_bias(self) -> bool:
        return self.interval.low >= RELEVANT_BIAS or self.interval.high <= -RELEVANT_BIAS


class TypeSums:
    """Sums over the tasks of one type.

    Args:
        tasks: The sums of each.
        step: To which they fade.
    """

    def __init__(self, tasks: Iterable[TaskSums], step: int):
        import numpy

        at, *sums = numpy.array(list(tasks), dtype=float).T
        fade = BIAS_DECAY_PER_STEP ** (step - at)
        w, s, o, so, oo = (fade * values for values in (sums[0], *sums[2:]))
        ww = fade**2 * sums[1]
        self.weight = float(w.sum())
        self.count = float(self.weight**2 / (w**2).sum())
        """How many equally weighted tasks say as much (Kish 1965)."""
        self.score, self.outcome = float(s.sum()) / self.weight, float(o.sum()) / self.weight
        self.u, self.v = s - w * self.score, o - w * self.outcome
        self.products = so - self.score * o - self.outcome * s + w * self.score * self.outcome
        """By task, sums over its samples of the products of the deviations of score and outcome
        from the type's means."""
        self.outcomes = oo - 2 * self.outcome * o + w * self.outcome**2
        own, several = ww / w, w * w > 1.001 * ww  # of a single sample the difference is rounding
        self.between = tuple(
            several * (moment - own * same)
            for moment, same in ((self.u * self.v, self.products), (self.v * self.v, self.outcomes))
        )
        """By task, the same sums over pairs of different samples: of score and outcome, and of two
        outcomes."""

    def variance(self, slope: float) -> float:
        """Returns the variance of a task's mean of score - slope * outcome."""
        residual = self.u - slope * self.v
        of_mean = float(residual @ residual) / self.weight**2
        return of_mean * self.count**2 / max(self.count - 1, 0.1)


def errors_of(types: Mapping[str, TypeSums], slope: float) -> dict[str, float]:
    """Returns the standard error of each type's mean of score - slope * outcome, by task.

    A type's tasks vary by no less than those of all types do: a few that happen to be alike do not
    tell that the next one will be.
    """
    degrees = {name: max(one.count - 1, 0.1) for name, one in types.items()}
    variances = {name: one.variance(slope) for name, one in types.items()}
    pooled = sum(degrees[name] * variances[name] for name in types) / sum(degrees.values())
    return {name: sqrt(max(variances[name], pooled) / one.count) for name, one in types.items()}


def slopes_of(types: Sequence[TypeSums], errors: float) -> Interval:
    """Returns the slopes that the data allow, at so many standard errors; see the top of the
    module."""
    import numpy

    t = t_quantile(max(1.0, sum(one.count for one in types) - len(types)), errors)
    low, high = 0.0, MOST_SLOPE
    p, v = (numpy.concatenate([one.between[n] for one in types]) for n in range(2))
    a = float(v.sum()) ** 2 - t * t * float(v @ v)
    if a > SUM_ROUNDING and v.sum() > 0:  # else even the variance of q is not known to be above 0
        half = float(p.sum() * v.sum()) - t * t * float(p @ v)
        root = sqrt(max(0.0, half * half - a * (float(p.sum()) ** 2 - t * t * float(p @ p))))
        first, last = (half - root) / a, (half + root) / a
        low, high = (
            (first, last)
            if first > high
            else (max(low, min(high, first)), min(high, max(low, last)))
        )
    c = numpy.concatenate([one.products for one in types])
    least = float(c.sum()) - t * sqrt(float(c @ c))
    outcomes = float(sum(one.outcomes.sum() for one in types))
    if least > 0 and outcomes > SUM_ROUNDING:
        low = min(high, max(low, least / outcomes))
    return Interval(low, high)


def contrast(types: Mapping[str, TypeSums], kind: str, errors: float) -> Difference:
    """Returns a type against the mean of the others.

    Args:
        errors: Standard errors of the interval.
    """
    weights = {name: 1.0 if name == kind else -1.0 / (len(types) - 1) for name in types}
    score = sum(c * types[name].score for name, c in weights.items())
    success = sum(c * types[name].outcome for name, c in weights.items())
    t = t_quantile(max(1.0, sum(one.count for one in types.values()) - len(types)), errors)
    slopes, ends = slopes_of(list(types.values()), min(errors, SLOPE_ERRORS)), []
    for slope in (slopes.low, slopes.high):
        bias = score - slope * success
        each = errors_of(types, slope)
        half = t * hypot(*(c * each[name] for name, c in weights.items()))
        ends.append(Interval(bias - half, bias + half))
    interval = Interval(min(end.low for end in ends), max(end.high for end in ends))
    some = any(end.low > 0 or end.high < 0 for end in ends)
    clear = interval.low > 0 or interval.high < 0
    other = next((name for name in types if name != kind), "") if len(types) == 2 else ""
    return Difference(
        score, success, score - slopes.middle * success, interval, other, some and not clear
    )


@dataclass
class BiasMonitor:
    """Keeps the scores that have been seen, by role, type and task; `record` gives them as JSON
    values and `restore` takes them back."""

    step: int = 0
    """Number of steps that were taken in."""
    sums: dict[str, dict[str, dict[str, TaskSums]]] = field(default_factory=dict)
    tests: dict[str, dict[str, Difference]] = field(default_factory=dict)
    """What `differences` gives for an alarm, as of the last step."""
    name: str = "bias"
    """Of its metrics, and of its alarm."""

    def observe(
        self,
        step: Iterable[tuple[Trajectory, JudgedAction]],
        kind_of: KindOf = lambda trajectory, role: type_of(trajectory),
    ) -> None:
        """Takes in a step's verdicts: of each role one mean score a trajectory, because its actions
        are no independent samples.

        Args:
            kind_of: A trajectory and a role to the type; None: it has none.
        """
        by_key: dict[tuple[str, str, str], dict[Trajectory, list[tuple[float, float]]]] = {}
        for trajectory, judged in step:
            kind = kind_of(trajectory, judged.action.role)
            outcome = trajectory.outcome_of(judged.action.role)
            if kind is not None and judged.verdict is not None and outcome is not None:
                samples = by_key.setdefault((judged.action.role, kind, trajectory.task.id), {})
                samples.setdefault(trajectory, []).append((judged.verdict.share, outcome))
        means = {
            key: [(fmean(s for s, _ in some), some[0][1]) for some in of.values()]
            for key, of in by_key.items()
        }
        self.add(means)

    def add(self, step: Mapping[tuple[str, str, str], Samples]) -> None:
        """Takes in a step.

        Args:
            step: By role, type and task, its samples.
        """
        self.step += 1
        for (role, kind, task), samples in sorted(step.items()):
            tasks = self.sums.setdefault(role, {}).setdefault(kind, {})
            old = faded(tasks.get(task, [self.step, *[0.0] * 6]), self.step)
            fresh = [(1.0, 1.0, s, o, s * o, o * o) for s, o in samples]
            tasks[task] = [self.step, *map(sum, zip(old, *fresh, strict=True))]
        if self.step % LOOKED_THROUGH == 0:
            self._forget()
        self.tests = self.differences()

    def _forget(self) -> None:
        """Drop the tasks that hardly count any more, and the types of which none is left."""
        for types in self.sums.values():
            for kind, tasks in list(types.items()):
                types[kind] = {
                    task: sums
                    for task, sums in tasks.items()
                    if sums[1] * BIAS_DECAY_PER_STEP ** (self.step - sums[0]) >= FORGOTTEN
                }
                if not types[kind]:
                    del types[kind]

    def differences(self, errors: float | None = None) -> dict[str, dict[str, Difference]]:
        """Returns, by role, each type against the mean of the others; roles with fewer than two
        types that have enough tasks are left out.

        Of two types one line says it all: that of the first in alphabetical order.

        Args:
            errors: Standard errors of the intervals; None: those of an alarm.
        """
        known = {role: types for role in sorted(self.sums) if len(types := self._known(role)) > 1}
        lines = {
            role: list(types)[: 1 if len(types) == 2 else None] for role, types in known.items()
        }
        z = errors_of_alarm(sum(map(len, lines.values()))) if errors is None else errors
        return {
            role: {kind: contrast(known[role], kind, z) for kind in kinds}
            for role, kinds in lines.items()
        }

    def _known(self, role: str) -> dict[str, TypeSums]:
        """The sums of the types with enough tasks."""
        types = {
            kind: TypeSums(tasks.values(), self.step)
            for kind, tasks in sorted(self.sums[role].items())
        }
        return {kind: one for kind, one in types.items() if one.count >= LEAST_TASKS}

    def corrections(self) -> dict[str, dict[str, float]]:
        """Returns, by role and type, what is too much in the scores: how far the type lies from the
        mean of all, where it has a bias."""
        by_role: dict[str, dict[str, float]] = {}
        for role, table in self.tests.items():
            share = 1 - 1 / max(2, len(table))
            by_role[role] = {kind: d.bias * share for kind, d in table.items() if d.is_bias}
            if len(table) == 1:  # of two types
                by_role[role] |= {d.other: -d.bias * share for d in table.values() if d.is_bias}
        return by_role

    def metrics(self) -> dict[str, float]:
        """Returns the table: by role and type the differences and the bias with its interval; and
        the alarm."""
        metrics: dict[str, float] = {}
        reasons: dict[str, float] = {}
        for role, table in self.differences(1.96).items():
            for kind, d in table.items():
                name, test = f"{self.name}/{role}/{kind}", self.tests[role][kind]
                metrics |= {
                    f"coach/{name}/score": d.score,
                    f"coach/{name}/success": d.success,
                    f"coach/{name}": d.bias,
                    f"coach/{name}/unclear": float(test.unclear),
                    f"coach/{name}/low": d.interval.low,
                    f"coach/{name}/high": d.interval.high,
                }
                if test.is_bias:
                    reasons[f"alarm/coach_{name}"] = d.bias
        alarm = {f"alarm/coach_{self.name}": float(bool(reasons))}
        return {**metrics, **alarm, **reasons} if metrics else {}

    def record(self) -> dict[str, Any]:
        return {"step": self.step, "tasks": self.sums}

    def restore(self, record: Mapping[str, Any]) -> None:
        self.step = record["step"]
        self.sums = {
            role: {kind: dict(t) for kind, t in types.items()}
            for role, types in record["tasks"].items()
        }
        self.tests = self.differences()


def faded(sums: TaskSums, step: int) -> list[float]:
    """Returns a task's sums without their step, as they count in a later one."""
    by = BIAS_DECAY_PER_STEP ** (step - sums[0])
    return [by * by * value if place == 1 else by * value for place, value in enumerate(sums[1:])]


def errors_of_alarm(lines: int) -> float:
    """Returns the standard errors of an alarm's interval, for so many pairs of role and type that
    are tested (Bonferroni)."""
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * LOOKS * max(1, lines)))


def type_of(trajectory: Trajectory) -> str | None:
    """Returns the type of a trajectory's task, if its metadata name one."""
    kind = trajectory.task.metadata.get("type")
    return None if kind is None else str(kind)


def by_length(step: Sequence[tuple[Trajectory, JudgedAction]]) -> KindOf:
    """Returns whether what a role has written in a trajectory is `longer` or `shorter` than the
    mean of the role's in a step, in tokens an action; None where it is as long."""
    of: dict[str, dict[Trajectory, list[int]]] = {}
    for trajectory, judged in step:
        lengths = of.setdefault(judged.action.role, {}).setdefault(trajectory, [])
        lengths.append(len(judged.action.generation.ids))
    means = {role: {t: fmean(n) for t, n in lengths.items()} for role, lengths in of.items()}
    middle = {role: fmean(lengths.values()) for role, lengths in means.items()}

    def kind(trajectory: Trajectory, role: str) -> str | None:
        length = means[role][trajectory]
        return None if length == middle[role] else "longer" if length > middle[role] else "shorter"

    return kind


def debias(monitor: BiasMonitor, step: Sequence[tuple[Trajectory, JudgedAction]]) -> None:
    """Takes the bias of the steps before out of a step's scores, within [0, 1]."""
    corrections = monitor.corrections()
    for trajectory, judged in step:
        action = judged.action
        excess = corrections.get(judged.action.role, {}).get(type_of(trajectory) or "", 0.0)
        if action.score is not None and excess:
            action.change_score(min(1.0, max(0.0, action.score - excess)), TERM)
