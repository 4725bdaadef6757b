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
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


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


@dataclass(frozen=True)
class Range:
    """A range of numbers, both bounds included; called by argparse to convert A:B, A:, :B or A.

    Args:
        number: What the bounds are.
        low, high: The bounds where none is written; None for no last one.
        what: What the numbers are, for the message.
    """

    number: Number
    low: float
    high: float | None
    what: str

    def __call__(self, word: str) -> tuple[Any, Any]:
        first, colon, last = word.partition(":")
        try:
            low = self.low if colon and not first else self.number(first)
            high = (self.number(last) if last else self.high) if colon else low
        except (ValueError, argparse.ArgumentTypeError):
            expected = f"expected A:B, A:, :B or A, {self.what}"
            raise argparse.ArgumentTypeError(f"{word!r}: {expected}") from None
        if high is not None and low > high:
            first_stands = f"the lower bound stands first: {last}:{first}"
            raise argparse.ArgumentTypeError(f"{word!r}: {first_stands}")
        return low, high


def spans(numbers: Iterable[int]) -> str:
    """Returns numbers of lines or steps as a reader writes them: `12-14, 20`."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number <= runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


step_range = Range(Number(int, least=0), 0, None, "steps being whole numbers")
"""The type of --step: the first and the last step; None for no last one."""
score_range = Range(between(0, 1), 0.0, 1.0, "outcomes being from 0 to 1")
"""The type of --outcome: the lowest and the highest outcome."""
