"""How sure a success rate is."""

from __future__ import annotations

from math import sqrt


def wilson(rate: float, count: int, z: float = 1.96) -> tuple[float, float]:
    """The Wilson interval of a success rate over `count` independent tasks (Wilson 1927); 95 % by default.

    For scores between 0 and 1 it is a little too wide, never too narrow: nothing in [0, 1] varies more than 0 and 1 do.
    """
    if count == 0:
        return 0.0, 1.0
    centre = (rate + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * sqrt(rate * (1 - rate) / count + z * z / (4 * count * count))
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))  # the rate itself, for rounding's sake
