"""Intervals that say how sure a mean over tasks is: a success rate, or a mean score."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import erfc, expm1, isfinite, pi, sqrt, tan
from statistics import fmean, stdev


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """Returns the mean of the values that are there and finite; None without any."""
    known = [value for value in values if value is not None and isfinite(value)]
    return sum(known) / len(known) if known else None


def wilson(rate: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """Returns the Wilson interval of a success rate over `count` independent tasks (Wilson 1927);
    95 % by default.

    With several samples per task `rate` is the mean of the tasks' rates, and the interval a little
    too wide, never too narrow: nothing in [0, 1] varies more than 0 and 1 do.
    """
    if count == 0:
        return 0.0, 1.0
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return min(rate, max(0.0, centre - half)), max(
        rate, min(1.0, centre + half)
    )  # the rate itself, for rounding's sake


def student(scores: Sequence[float], z: float = 1.96) -> tuple[float, float]:
    """Returns Student's interval of the mean of independent tasks' scores, within [0, 1]; 95 % by
    default.

        mean +- t s / sqrt(n)      s the standard deviation with n - 1, t the quantile of n - 1
                                   degrees of freedom

    (Student 1908.) Fewer than three tasks say nothing: [0, 1].
    """
    count = len(scores)
    if count < 3:
        return 0.0, 1.0
    mean = fmean(scores)
    half = t_quantile(count - 1, z) * stdev(scores) / sqrt(count)
    return max(0.0, mean - half), min(1.0, mean + half)


def t_quantile(degrees: float, z: float = 1.96) -> float:
    """Returns Student's quantile from the normal one `z` of the same probability, by Hill 1970
    (CACM algorithm 396).

    From 2 degrees of freedom on it is exact to 0.1 %, as it is at 1; between them it is up to a
    fifth too large.

    Args:
        degrees: Of freedom, at least 1.
    """
    p = erfc(z / sqrt(2))
    if degrees == 1:
        return 1 / tan(p * pi / 2)
    a = 1 / (degrees - 0.5)
    b = 48 / a**2
    c = ((20700 * a / b - 98) * a - 16) * a + 96.36
    d = ((94.5 / (b + c) - 3) / b + 1) * sqrt(a * pi / 2) * degrees
    y = (d * p) ** (2 / degrees)
    if y <= 0.05 + a:
        y = (
            (
                1 / (((degrees + 6) / (degrees * y) - 0.089 * d - 0.822) * (degrees + 2) * 3)
                + 0.5 / (degrees + 4)
            )
            * y
            - 1
        ) * (degrees + 1) / (degrees + 2) + 1 / y
        return sqrt(degrees * y)
    x = -z
    if degrees < 5:
        c += 0.3 * (degrees - 4.5) * (x + 0.6)
    c = (((0.05 * d * x - 5) * x - 7) * x - 2) * x + b + c
    y = (((((0.4 * z * z + 6.3) * z * z + 36) * z * z + 94.5) / c - z * z - 3) / b + 1) * x
    return sqrt(degrees * expm1(a * y * y))


def interval(scores: Sequence[float], binary: bool, z: float = 1.96) -> tuple[float, float]:
    """Returns the interval of the mean of the tasks' scores; 95 % by default.

    Args:
        scores: One per task, the mean of its samples.
        binary: Whether every sample's score is 0 or 1: a success or none.
    """
    if not scores:
        return 0.0, 1.0
    return wilson(fmean(scores), len(scores), z) if binary else student(scores, z)


Bounds = tuple[float, float]


def difference(
    first: float, of_first: Bounds, second: float, of_second: Bounds, correlation: float = 0.0
) -> Bounds:
    """Returns the interval of the difference of two means from the interval of each.

        d - sqrt(a^2 - 2 r a b + b^2)      a = first - low of first, b = high of second - second
        d + sqrt(c^2 - 2 r c e + e^2)      c = high of first - first, e = second - low of second

    Of two success rates with their Wilson intervals it is Newcombe's: method 10 of Newcombe 1998
    (Statistics in Medicine 17, 873) for independent ones, and method 10 of Newcombe 1998 (17, 2635)
    for pairs; of other means Zou and Donner's (2008, 27, 1693). Wald's interval covers far less at
    a rate near 0 or 1.

    Args:
        correlation: r, of the outcomes of pairs (`correlation_of_pairs`); 0: independent.
    """
    a, b = first - of_first[0], of_second[1] - second
    c, e = of_first[1] - first, second - of_second[0]
    below = sqrt(max(0.0, a * a - 2 * correlation * a * b + b * b))
    above = sqrt(max(0.0, c * c - 2 * correlation * c * e + e * e))
    return max(-1.0, first - second - below), min(1.0, first - second + above)


def correlation_of_pairs(pairs: Sequence[tuple[float, float]]) -> float:
    """Returns Newcombe's phi of pairs of outcomes, with his correction for continuity, which takes
    from a positive one; 0 where one side does not vary."""
    count, xs, ys = len(pairs), [x for x, _ in pairs], [y for _, y in pairs]
    both = count * sum(x * y for x, y in pairs) - sum(xs) * sum(ys)
    of_x, of_y = (count * sum(v * v for v in values) - sum(values) ** 2 for values in (xs, ys))
    if of_x <= 1e-9 or of_y <= 1e-9:
        return 0.0
    return (max(0.0, both - count / 2) if both > 0 else both) / sqrt(of_x * of_y)


def p_value(interval_at: Callable[[float], Bounds]) -> float:
    """Returns the probability under no difference that belongs to the widest interval without 0.

    Args:
        interval_at: The interval for a normal quantile z, which widens with it.
    """
    low, high = 0.0, 12.0
    for _ in range(40):
        z = (low + high) / 2
        bounds = interval_at(z)
        low, high = (z, high) if bounds[0] > 0 or bounds[1] < 0 else (low, z)
    return erfc(low / sqrt(2))
