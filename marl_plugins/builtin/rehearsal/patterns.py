"""Texts that a regular expression finds, one for each of its alternatives."""

from __future__ import annotations

import re
from typing import Any

MOST_EXAMPLES = 12
"""Examples of one pattern."""
CATEGORIES = {
    "CATEGORY_DIGIT": "1",
    "CATEGORY_WORD": "a",
    "CATEGORY_SPACE": " ",
    "CATEGORY_NOT_SPACE": "a",
}
"""A character of each category, by its name in Python's parser of patterns."""


def examples(pattern: re.Pattern[str], filler: str = "") -> list[str]:
    """Returns the texts in which a pattern finds something.

    Args:
        filler: What its groups are to hold, where they may hold that.
    """
    parser: Any = getattr(re, "_parser")  # noqa: B009  (Python's own; private since 3.11)
    found: dict[str, None] = {}
    for text in _sequence(parser.parse(pattern.pattern, pattern.flags), filler):
        if pattern.search(text):
            found.setdefault(text)
    return list(found)[:MOST_EXAMPLES] if found or not filler else examples(pattern)


def _sequence(parts: Any, filler: str) -> list[str]:
    """Texts for parts that follow each other: the n-th text is made of the n-th of each part."""
    each = [_part(str(kind), argument, filler) for kind, argument in parts]
    count = min(max((len(texts) for texts in each), default=1), MOST_EXAMPLES)
    return ["".join(texts[n % len(texts)] for texts in each) for n in range(count)]


def _part(kind: str, argument: Any, filler: str) -> list[str]:
    if kind == "LITERAL":
        return [chr(argument)]
    if kind == "NOT_LITERAL":
        return ["b" if argument == ord("a") else "a"]
    if kind == "ANY":
        return ["a"]
    if kind == "IN":
        return [_one_of(argument)]
    if kind == "BRANCH":
        return [text for branch in argument[1] for text in _sequence(branch, filler)]
    if kind == "SUBPATTERN":
        inner = argument[-1]
        return (
            [filler]
            if filler and _is_open(inner) and _holds(inner, filler)
            else _sequence(inner, filler)
        )
    if kind in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
        low, high, inner = argument
        return [text * min(max(low, 1), int(high)) for text in _sequence(inner, filler)]
    return [""]  # places, assertions, references to groups


def _one_of(items: Any) -> str:
    """A character of a set."""
    kinds = [(str(kind), argument) for kind, argument in items]
    if kinds[0][0] == "NEGATE":
        without = {argument for kind, argument in kinds[1:] if kind == "LITERAL"}
        return next(c for c in "ab1 x-" if ord(c) not in without)
    kind, argument = kinds[0]
    if kind == "RANGE":
        return chr(argument[0])
    return chr(argument) if kind == "LITERAL" else CATEGORIES.get(str(argument), "a")


def _holds(parts: Any, text: str) -> bool:
    """Returns whether the whole of a text is what parts may be."""
    compiler: Any = getattr(re, "_compiler")  # noqa: B009
    return compiler.compile(parts).fullmatch(text) is not None


def _is_open(parts: Any) -> bool:
    """Returns whether parts hold something that may be many texts: a repetition."""
    return any(str(kind).endswith("REPEAT") for kind, _ in parts)
