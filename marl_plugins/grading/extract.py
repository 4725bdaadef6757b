"""Finds an answer in a text, in the form that a prompt asks for:

    boxed      the content of the last `\\boxed{...}`
    final      that; without a box what follows `answer:` on the last line, or else that line
    word       which of some words that is

A text has one answer, so one that names several gains nothing by it.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from marl_plugins.grading.numbers import bare

BOX = re.compile(r"\\boxed[ \t]*\{")
BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
STATED = re.compile(r"[\s*_`#>]*(?:(?:final[ \t]+)?answer[*_`]*[ \t]*:)?", re.IGNORECASE)
"""What may stand before the answer on the last line."""


def boxed(text: str) -> str | None:
    """Returns the content of the last \\boxed{...} that has any; empty where the last one is cut
    off, None without any."""
    content = None
    for start in reversed([match.end() for match in BOX.finditer(text)]):
        depth = 1
        for match in BRACES.finditer(text, start):
            depth += {"{": 1, "}": -1}.get(match[0], 0)
            if depth == 0:
                content = text[start : match.start()]
                break
        else:
            return ""
        if content.strip():
            return content
    return content


def final(text: str | None) -> str:
    """Returns the answer of a text: what its last box holds; without a box what follows `answer:`
    on the last line, or else that line."""
    text = (text or "").strip(" \t\n`")
    inside = boxed(text)
    if inside is not None:
        return inside.strip()
    return STATED.sub("", text.rpartition("\n")[2], count=1).strip(" \t*_`\"'")


def word(text: str | None, words: Collection[str]) -> str:
    """Returns which of some words the answer of a text is (`final`), as it stands in `words`; empty
    where it is none of them."""
    known = {each.lower(): each for each in words}
    return known.get(bare(final(text)).lower(), "")
