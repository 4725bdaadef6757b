"""Answers without what typesets them, and numbers, exactly."""

from __future__ import annotations

import re
from fractions import Fraction

LONGEST_CHARS = 1000
"""Maximum number of characters of an answer that is read as a value."""
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
STYLE = re.compile(r"\\?\$|\\displaystyle")
SPACES = r"(?:\s|~|\\(?:[ ,;:!]|q?quad|$))*+"
COUNTED = (
    r"\\(?:text|textrm|mathrm|mbox)\s*\{"
    r"(?!\s*(?:hundred|thousand|million|billion|trillion|dozen))[^{}\\\d]*\}"
    r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?"
    r"|\\?%|°|\\degree|\^\s*\{?\s*\\circ\s*\}?"
)
"""What is counted, as LaTeX says it: `\\text{ cm}^2`, a percent sign, degrees."""
AROUND = re.compile(rf"^{SPACES}|(?:(?<=[\d}})])|(?<=\\pi)){SPACES}(?:(?:{COUNTED}){SPACES})?$")
"""Spaces at both ends of an answer, and its unit."""
POWER = re.compile(r"(?<=[\d.])\s*\\(?:times|cdot)\s*10\s*\^\s*\{?([+-]?\d+)\}?$", re.ASCII)
NUMBER = re.compile(
    r"[+-]?\s*(?:\d{1,3}(?:,\d{3})+|\d*)(?:\.\d*)?(?:e[+-]?\d{1,3}|/\d+)?",
    re.ASCII | re.IGNORECASE,
)
FRACTION = re.compile(
    r"([+-]?)\s*+(\d*)\s*\\[dtc]?frac\s*(?:\{(-?\d+)\}\s*\{(\d+)\}|(\d)\s*(\d))", re.ASCII
)


def clean(answer: str) -> str:
    """Returns an answer without what only typesets it, and without its unit."""
    text = STYLE.sub("", answer.replace("\u2212", "-"))
    text = text.strip(" \t\n*`").rstrip(". ")
    for opening, closing in (("\\(", "\\)"), ("\\[", "\\]")):
        text = text.removeprefix(opening).removesuffix(closing).strip()
    whole = TEXT.fullmatch(text)
    return AROUND.sub("", whole[1] if whole else text).strip()


def bare(answer: str) -> str:
    """Returns an answer of words without punctuation around it."""
    return clean(answer).strip(" ().:;,![]")


def number(text: str) -> Fraction | None:
    """Returns the number that a text is, or None: digits with a sign, thousands, decimals, a power
    of ten (`1.5e3`) or a denominator, or `\\frac{1}{2}`, `1\\frac{1}{2}`; a unit may follow."""
    if len(text) > LONGEST_CHARS:
        return None
    text = clean(text).replace("\\!", "").replace("\\,", ",").replace("{,}", ",")
    text = POWER.sub(r"e\1", text)
    if fraction := FRACTION.fullmatch(text):
        sign, whole, above, below, digit, other = fraction.groups()
        below = below or other
        text = f"{sign}{int(whole or 0) * int(below) + int(above or digit)}/{below}"
    try:
        return Fraction(re.sub(r"[,\s]", "", text)) if NUMBER.fullmatch(text) else None
    except (ValueError, ZeroDivisionError):
        return None


def close(a: Fraction, b: Fraction) -> bool:
    """Returns whether two numbers are the same but for the rounding of the sixth digit; whole
    numbers are not rounded."""
    if a.denominator == b.denominator == 1:
        return a == b
    return abs(a - b) <= Fraction(1, 10**6) * min(Fraction(1), abs(b))
