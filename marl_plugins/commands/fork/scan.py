"""How well scores say what actions cause: a coach's scores against the measured effects, by role.

The outcome stands beside it, as if it were the score of every action of its trajectory. Intervals
are percentiles of a bootstrap over trajectories, whose actions depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from marl_plugins.commands.fork.effects import Effect
from marl_plugins.core.files import finite

RESAMPLES = 1000
LEAST = 4
"""Actions of a role of which a correlation is told."""
Statistic = Callable[[np.ndarray, np.ndarray], float]


def pearson(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Pearson's correlation; NaN where one side does not vary."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def spearman(x: np.ndarray, y: np.ndarray) -> float:
    """Returns Spearman's correlation, that of the ranks; ties have their mean rank."""
    return pearson(ranks(x), ranks(y))


def ranks(values: np.ndarray) -> np.ndarray:
    """Returns the ranks from 0; those that are equal have their mean."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    return np.take(np.cumsum(counts) - (counts + 1) / 2, places)


def adjusted(p: Sequence[float]) -> list[float]:
    """Returns p values for all of them together (Benjamini and Hochberg 1995, the step-up): each
    the least p N / rank of those that are no smaller."""
    falling = np.argsort(p)[::-1]
    of_all = np.array(p)[falling] * len(p) / np.arange(len(p), 0, -1)
    return [float(value) for value in np.minimum.accumulate(of_all)[np.argsort(falling)]]


def account(effects: Sequence[Effect]) -> dict[str, dict[str, Any]]:
    """Returns by role, and of `all`, what scores say of effects.

    actions, effect              their number, and their mean effect
    pearson, spearman            of the score and the effect, each with its 95 % interval
    outcome                      Pearson's correlation of the outcome and the effect
    reliability                  of the measured effect: correlation of its two halves, by Spearman
                                 and Brown (1910)
    corrected                    Pearson's over the root of the reliability: as of effects without
                                 noise
    full_marks, less             mean effect of the actions with a score of 1, and of the others
    """
    known = [
        e
        for e in effects
        if not e.refused
        and e.action.score is not None
        and e.original.outcome_of(e.action.role) is not None
    ]
    roles = dict.fromkeys(e.action.role for e in known)
    by_role = {
        "all": known,
        **{role: [e for e in known if e.action.role == role] for role in roles},
    }
    return {role: of_role(mine) for role, mine in by_role.items() if len(mine) >= LEAST}


def of_role(effects: Sequence[Effect]) -> dict[str, Any]:
    """Returns the account of some effects."""
    scores, values = (
        np.array([e.action.score for e in effects], float),
        np.array([e.value for e in effects], float),
    )
    then = np.array([e.original.outcome_of(e.action.role) for e in effects], float)
    trajectories = [e.original for e in effects]
    r, reliability = pearson(scores, values), halves(effects)
    told: dict[str, Any] = {
        "actions": len(effects),
        "effect": fmean(values),
        "pearson": [r, *bootstrap(pearson, scores, values, trajectories)],
        "spearman": [spearman(scores, values), *bootstrap(spearman, scores, values, trajectories)],
        "outcome": [pearson(then, values), *bootstrap(pearson, then, values, trajectories)],
        "reliability": reliability,
        "corrected": r / math.sqrt(reliability) if reliability > 0 else math.nan,
    }
    parts = {"full_marks": values[scores == 1.0], "less": values[scores < 1.0]}
    for name, part in parts.items():
        told[name] = [len(part), fmean(part)] if len(part) else None
    known: dict[str, Any] = finite(told)
    return known


def halves(effects: Sequence[Effect]) -> float:
    """Returns the reliability of effects by halves of their forks."""

    def half(effect: Effect, first: int) -> float:
        means = []
        for arm in effect.arms:
            of_half = [o for n, o in arm.outcomes.items() if n % 2 == first]
            means.append(fmean(of_half) if of_half and not arm.fixed else arm.mean)
        return means[0] - means[1]

    r = pearson(*(np.array([half(e, first) for e in effects]) for first in (0, 1)))
    return 2 * r / (1 + r) if r > -1 else math.nan


def bootstrap(
    statistic: Statistic, x: np.ndarray, y: np.ndarray, clusters: Sequence[object]
) -> tuple[float, float]:
    """Returns the 95 % interval of a statistic of pairs, by resampling the clusters that they are
    of (Davison and Hinkley 1997, section 3.8); NaN where they do not vary."""
    order: dict[object, list[int]] = {}
    for number, cluster in enumerate(clusters):
        order.setdefault(cluster, []).append(number)
    groups, draw, drawn = [np.array(g) for g in order.values()], np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        rows = np.concatenate([groups[k] for k in draw.integers(len(groups), size=len(groups))])
        if not math.isnan(value := statistic(x[rows], y[rows])):
            drawn.append(value)
    if len(drawn) < RESAMPLES / 2:
        return math.nan, math.nan
    low, high = np.percentile(drawn, [2.5, 97.5])
    return float(low), float(high)
