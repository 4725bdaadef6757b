"""Types of flags, for argparse: numbers with a range, files that a recipe names relative to itself,
and ranges of steps.

    parser.add_argument("--brevity.limit", type=at_least(1), default=64)
    parser.add_argument("--brevity.words", type=recipe_file)

A wrong value is reported with its place by the plan (engine/plan/flags.py), like every other
problem with a flag.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Number:
    """A finite number with a range; called by argparse to convert a word.

    Args:
        kind: int or float.
        least, most: Bounds that are allowed themselves.
        above: A bound that is not.
        because: Why, for the message.
    """

    kind: Callable[[str], float] = float
    least: float | None = None
    above: float | None = None
    most: float | None = None
    because: str = ""

    def __call__(self, word: str) -> float:
        value = self.kind(word)
        if problem := self.problem(value):
            raise argparse.ArgumentTypeError(f"{word} {problem}")
        return value

    def problem(self, value: float) -> str | None:
        """Returns what is wrong with a number, as the end of a sentence about it; None when it is
        in the range."""
        low = self.least is None or value >= self.least
        inside = (
            low
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )
        return None if math.isfinite(value) and inside else f"is out of range: expected {self}"

    def __str__(self) -> str:
        bounds = [
            f"at least {self.least:.10g}" if self.least is not None else "",
            f"above {self.above:.10g}" if self.above is not None else "",
            f"at most {self.most:.10g}" if self.most is not None else "",
        ]
        text = " and ".join(b for b in bounds if b) or "a finite number"
        return f"{text}: {self.because}" if self.because else text

    @property
    def __name__(self) -> str:
        """Returns what argparse calls the type in its own message about a word that is no
        number."""
        return "int" if self.kind is int else "float"


def at_least(bound: float, kind: Callable[[str], float] = int) -> Number:
    """Returns a number of at least `bound`; whole unless `kind` is float."""
    return Number(kind, least=bound)


def above(bound: float, kind: Callable[[str], float] = float) -> Number:
    """Returns a number above `bound`."""
    return Number(kind, above=bound)


def between(least: float, most: float) -> Number:
    """Returns a number from `least` to `most`."""
    return Number(float, least=least, most=most)


def recipe_file(word: str) -> str:
    """Returns a file: on the command line relative to the working folder, in a recipe relative to
    the recipe (engine/plan/flags.py)."""
    return word


def step_range(word: str) -> tuple[int, int | None]:
    """Returns the type of --steps: the first and the last step; None for no last one."""
    match = re.fullmatch(r"(\d*):(\d*)|(\d+)", word)
    if match is None:
        raise argparse.ArgumentTypeError(
            f"{word!r}: expected A:B, A:, :B or A, steps being whole numbers"
        )
    first, last, only = match.groups()
    if only:
        return int(only), int(only)
    if first and last and int(first) > int(last):
        raise argparse.ArgumentTypeError(
            f"{word!r}: there is no step from {first} to {last}; the first one stands first: "
            f"{last}:{first}"
        )
    return int(first or 0), int(last) if last else None


def score_range(word: str) -> tuple[float, float]:
    """Returns the type of --outcome: the lowest and the highest outcome."""
    low, colon, high = word.partition(":")
    try:
        bounds = float(low or 0), float(high or 1) if colon else float(low)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{word!r}: expected A:B, A:, :B or A, outcomes being from 0 to 1"
        ) from None
    if not 0 <= bounds[0] <= bounds[1] <= 1:
        raise argparse.ArgumentTypeError(f"{word!r}: expected A:B with 0 <= A <= B <= 1")
    return bounds
