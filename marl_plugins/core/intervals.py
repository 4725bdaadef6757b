"""How sure a mean over tasks is: a success rate, or a mean score."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev


def wilson(rate: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson interval of a success rate over `count` independent tasks (Wilson 1927); 95 % by default.

    With several samples per task `rate` is the mean of the tasks' rates, and the interval a little too wide, never too narrow:
    nothing in [0, 1] varies more than 0 and 1 do.
    """
    if count == 0:
        return 0.0, 1.0
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))  # the rate itself, for rounding's sake


def student(scores: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """Student's interval of the mean of independent tasks' scores, within [0, 1]; 95 % by default.

        mean +- t s / sqrt(n)      s the standard deviation with n - 1, t the quantile of n - 1 degrees of freedom

    (Student 1908.) Fewer than three tasks say nothing: [0, 1].
    """
    count = len(scores)
    if count < 3:
        return 0.0, 1.0
    mean = fmean(scores)
    half = t_quantile(count - 1, z) * stdev(scores) / sqrt(count)
    return max(0.0, mean - half), min(1.0, mean + half)


def t_quantile(degrees: float, z: float = 1.96) -> float:
    """Student's quantile from the normal one `z`, by Abramowitz and Stegun 26.7.5.

    For 95 % it is 3 % too small with 2 degrees of freedom, and less than 1 % with more.
    """
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / degrees**power for power, term in enumerate(terms, start=1))


def interval(scores: Sequence[float], binary: bool) -> tuple[float, float]:
    """The 95 % interval of the mean of the tasks' scores.

    Args:
        scores: One per task, the mean of its samples.
        binary: Whether every sample's score is 0 or 1: a success or none.
    """
    if not scores:
        return 0.0, 1.0
    return wilson(fmean(scores), len(scores)) if binary else student(scores)
