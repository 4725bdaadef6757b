"""Compares the value of an answer with that of the label.

A label that is a number wants a number, written as one; words are compared as words. Anything else
(radicals, expressions, lists) is left to math-verify, which knows LaTeX. It would also carry out
the task that an answer only repeats (an integral, a limit, the sine of a number), so an answer has
no names but those of its label, fractions and roots.
"""

from __future__ import annotations

import re
from typing import Any

from marl_plugins.grading.extract import boxed, final
from marl_plugins.grading.math_verify import verified
from marl_plugins.grading.numbers import LONGEST_CHARS, bare, clean, close, number

WORDS = re.compile(r"[A-Za-z][A-Za-z '.-]*")
ACCEPTED = re.compile(r"\((?:both|either|each|all)\b[^()]*\baccepted\)")
ASSIGNED = re.compile(r"(?<![\w\\])[A-Za-z]\w*\s*(?:=|\\in(?![a-z]))")
"""What an answer names before its value: `x = 5`."""
NAMES = re.compile(r"\\?[A-Za-z]+")
PLAIN = r"""
    \frac \dfrac \tfrac \cfrac \sqrt \pi \infty \pm \cup \cdot \times \left \right \quad \text
    and or \le \leq \ge \geq pmatrix bmatrix
"""
"""Names that leave nothing to calculate but fractions, roots and products."""
MATRIX_WORK = re.compile(r"\\end\s*\{\w+\}\s*(?:[^\s\\]|\\(?:begin|cdot|times))")
"""A matrix that is still to be added, multiplied or inverted."""
UNEQUAL = re.compile(r"(?:[<>!]|\\not)\s*=")
"""What is no equation: `x >= 5`, `\\not= 5`."""
BASED = re.compile(r"\d\s*_")
"""A number in another base, `2016_8`: math-verify leaves out the base."""
TIME = re.compile(r"(?<!\d)\d\d?:[0-5]\d(?!\d)")
"""What may be a time, `2:40`: math-verify divides hours by minutes, as it has to with ratios."""


async def right(text: str | None, label: Any) -> bool:
    """Returns whether a text's answer (`final`) has the value of a label.

    Args:
        label: A text or a number; several that are all right are a JSON list, or end with
            `(both were accepted)`.

    Raises:
        ValueError: There is no label.
        InfrastructureFailure: What compares formulas does not work.
    """
    answers = [one for one in accepted(label) if label is not None and one.strip()]
    if not answers:
        raise ValueError(
            f"the label is {label!r}; there is nothing to compare answers with (--data.label_key "
            "names its field)"
        )
    text = (text or "").strip()
    answer = final(text)
    for one in answers:
        if text == one.strip() or await same(answer, one):
            return True
    return False


def accepted(label: Any) -> list[str]:
    """Returns the answers that a label accepts: a JSON list has several, and so has
    `80 or 81 (both were accepted)`."""
    if isinstance(label, list):
        return [one for each in label for one in accepted(each)]
    text = str(label)
    text = text.rpartition("####")[2].strip()  # GSM8K's layout: the solution, then the number
    text = boxed(text) or text
    return (
        re.split(r"\s+or\s+", ACCEPTED.sub("", text).strip()) if ACCEPTED.search(text) else [text]
    )


async def same(answer: str, label: str) -> bool:
    """Returns whether an answer has the value of a label.

    Raises:
        InfrastructureFailure: What compares formulas does not work.
    """
    if len(answer) > LONGEST_CHARS:
        return False
    expected = bare(label)
    if WORDS.fullmatch(expected):
        actual = bare(answer)  # a letter alone is a choice or a variable, whose case counts
        return actual == expected or (len(expected) > 1 and actual.lower() == expected.lower())
    a, b = clean(answer), clean(label)
    value = number(b)
    if "=" not in b:
        *before, a = (side.strip() for side in ASSIGNED.sub("", a).split("="))
        numbers = [each for side in before if (each := number(side)) is not None]
        if UNEQUAL.search(answer) or any(value is None or not close(n, value) for n in numbers):
            return False
    if value is not None:
        mine = number(a)
        return mine is not None and close(mine, value)
    written, wanted = (re.sub(r"[{}\s]|\\[,;!]", "", one) for one in (a, b))
    if BASED.search(a + b) or (TIME.search(wanted) and ":" in written):
        return written == wanted
    if a == b or not a.isascii():
        return a == b != ""
    if MATRIX_WORK.search(a) or not {*NAMES.findall(a)} <= {*NAMES.findall(b), *PLAIN.split()}:
        return False
    return await verified(a, b)
