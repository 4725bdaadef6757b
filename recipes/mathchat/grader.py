"""The verifier: whether the final answer is the right one. Deterministic, without a model.

Plain numbers are compared as numbers; anything else (fractions, radicals, expressions) is left to math-verify, which knows
LaTeX. What counts is the last `\\boxed{...}` of the answer or, without one, its last number.
"""

import re
from fractions import Fraction

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def boxed(text):
    """The content of the last \\boxed{...}, or None."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for place in range(begin - 1, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return text[begin:place]
    return None


def number(text):
    """The text as a number if it is one and nothing else, or None."""
    text = text.replace(",", "").replace("$", "").strip()
    return Fraction(text) if NUMBER.fullmatch(text) else None


def last_number(text):
    found = NUMBER.findall(re.sub(r"(?<=\d),(?=\d{3})", "", text))
    return found[-1] if found else ""


def same(answer, label):
    """Whether two answers are the same value."""
    if not answer.strip():
        return False
    a, b = number(answer), number(label)
    if a is not None and b is not None:
        return abs(a - b) < Fraction(1, 10**6)
    from math_verify import parse, verify

    return bool(verify(parse(f"${label}$"), parse(f"${answer}$")))


def right(text, label):
    """Whether a text's final answer is the label's."""
    label = str(label).rpartition("####")[2].strip()  # GSM8K's layout: the solution, then the number
    inside = boxed(text)
    return same(inside if inside is not None else last_number(text), label)


def score_outcome(trajectory):
    """1 for the right answer."""
    return float(right(trajectory.answer or "", trajectory.task.label))
