"""Finds an answer in a text, in the places and forms that a prompt may ask for, and in no other.

    boxed      the content of the last `\\boxed{...}`
    stated     that; or what follows the last `answer: X`, `the answer is X`, `#### X`, or stands in `<answer>X</answer>`
    word       one of some words: stated; alone on the last line; or the only one of them that the text names
    final      a number with the whole expression that it is a part of: stated; or the last one of the text

What stands in no such place is no answer. None of them takes a part for the whole: the article in "A clear case" is not the choice
A, the s of "that's" is not south, and the 3 of `2+3` is not 3.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from marl_plugins.grading.numbers import FIGURE, LONGEST_CHARS, RUN, number, plain, unfinished

TAIL = 4 * LONGEST_CHARS
"""Characters at the end of a text in which an answer without a box is looked for."""
NAMED = r"(?:answer|result|verdict|decision|winner|choice|vote|conclusion|judge?ment)"
STATED = re.compile(
    rf"<answer>(?P<tagged>.*?)</answer>"
    rf"|(?:\b{NAMED}\b[*_`\"']*(?:[ \t]+is)?[*_`\"']*[ \t]*[:=]|\b{NAMED}[ \t]+is[ \t]+|####)(?=\s*(?P<said>[^\n]*))",
    re.IGNORECASE | re.DOTALL,
)
MARKUP = " \t\n*_`\"'\u201c\u201d\u2018\u2019#>"
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
LEAD = re.compile(r"^(?:[-\u2022]\s+)?(?:the\s+)?(?:(?:option|choice|letter|answer)\s+)?\(?", re.IGNORECASE)
PRIOR = re.compile(r"(?:^|[^\w\s)}])\s*$|\b(?:is|equals|be)\s+$")
"""What may stand before a minus that is the sign of a number apart from it: nothing that it could be subtracted from."""
OTHERS = re.compile(r"(?<![\w.])-?\d[\d,.]*(?:,?[ \t]+(?:or|and))?[ \t]+$")
"""A number before another one: `41 or` of `41 or 42`, `41` of `41 42`."""

NOT = re.compile(r"\bnot\s+[*_$]*$", re.IGNORECASE)

OPEN = re.compile(r"0[\s,;/&*_$]+(?:(?:and|to)\s+)?[*_$]*0|\bor\b", re.IGNORECASE)
"""Two figures, each written as 0, of which it is open which one is meant."""


def boxed(text: str) -> str | None:
    """Returns the content of the last \\boxed{...}; empty where it is cut off, None without any."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed{")
    for found in re.finditer(r"\\.|[{}]", text[begin - 1 :], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0:
            return text[begin : begin - 1 + found.start()]
    return ""


def stated(text: str) -> str | None:
    """Returns what a text says is its answer, without what only typesets it; None where it says so nowhere."""
    inside = boxed(text)
    if inside is not None:
        return inside.strip()
    said = None
    for found in STATED.finditer(text[-TAIL:]):
        said = found["tagged"] if found["tagged"] is not None else found["said"]
    return None if said is None else said.strip(MARKUP)


def word(text: str | None, words: Collection[str]) -> str:
    """Returns which of some words an answer is, as it stands in `words`; empty where it is none of them, or leaves it open.

    A single letter has to be stated or alone on the last line, alone also after a colon; longer words may stand in a text that
    names no other.
    """
    text = text or ""
    known = {each.lower(): each for each in words}
    said = stated(text)
    if said is not None:
        return _begins(said, known)
    last = text.strip().rpartition("\n")[2]
    for place in (last, last.rpartition(":")[2]):
        if alone := known.get(_bare(place).lower()):
            return alone
    long = {each for each in re.findall(r"\w+", text.lower()) if each in known and len(each) > 1}
    return known[long.pop()] if len(long) == 1 else ""


def _begins(said: str, known: dict[str, str]) -> str:
    """The word that a stated answer begins with, unless another one stands right after it (`A or B`)."""
    bare = _bare(said)
    found = re.match(r"\w+", bare)
    if not found or found[0].lower() not in known:
        return ""
    if len(found[0]) == 1 and found[0].islower() and bare != found[0]:  # the article
        return ""
    after = re.match(r"[\s,/&|]*(?:\b(?:or|and)\b)?[\s,/&|]*(\w*)", bare[found.end() :], re.IGNORECASE)
    other = after[1].lower() if after else ""
    return "" if other in known and other != found[0].lower() else known[found[0].lower()]


def _bare(text: str) -> str:
    """A text without what only typesets or introduces a word."""
    text = TEXT.sub(r"\1", text.replace("$", "")).strip(MARKUP)
    return LEAD.sub("", text, count=1).strip(MARKUP + "().:;,!")


def final(text: str) -> str:
    """Returns the number that is a text's answer, with the whole expression that it is a part of; empty where there is none.

    A sum or a product that was not carried out (`2+3`, `12*7`) is none.
    """
    said = stated(text)
    if said is not None:
        return "" if boxed(text) == "" else _expression(said, first=True)
    return _expression(text[-TAIL:], first=False)


def _expression(text: str, *, first: bool) -> str:
    text = plain(text)
    runs = [run for run in RUN.finditer(text) if re.search(r"\d", run[0]) and run[0][0] not in "^_"]  # of a unit
    runs = [run for run in runs if not NOT.search(text[max(0, run.start() - 12) : run.start()])]
    if not runs:
        return ""
    run = runs[0 if first else -1]
    before, chunk = text[: run.start()], run[0].strip("* \t=")
    if chunk.startswith("- ") and not PRIOR.search(before):  # a dash
        chunk = chunk[1:].strip()
    if chunk.endswith("!") and (first or before.strip()) and number(chunk.rstrip("!")) is not None:  # of the sentence
        chunk = chunk.rstrip("!")
    if not first and (other := OTHERS.search(before)):
        return other[0].strip() + " " + chunk
    chunk = _balanced(re.split(r"(?<![<>!=:])=(?!=)|\u2248|\\approx(?![a-z])", chunk)[-1].strip(" ,;:*"))
    if (
        "," in chunk
        and number(chunk) is None
        and not _closed(chunk)
        and not re.match(r"[.;!?*_`$\s]*(?:\n|$)", text[run.end() :])
    ):
        chunk = chunk.rpartition(",")[2].strip()  # a comma of the sentence
    inside = chunk[1:-1].strip() if _closed(chunk) else ""
    return "" if unfinished(chunk) else inside if inside and number(inside) is not None and "," not in inside else chunk


def lone_number(text: str) -> str:
    """Returns the number of a text that says one figure: the only one; the one that it begins with (`4310 cents (43.10
    euros)`); or the last one, after a colon or a verb (`in 2025: 4310`). Empty without one, or where it leaves open which one
    (`34 or 35`, `10 20`)."""
    text = plain(text)
    found = list(re.finditer(FIGURE, text))
    if not found or OPEN.search(re.sub(FIGURE, "0", text)):
        return ""
    if len(found) == 1 or not text[: found[0].start()].strip(MARKUP + "$\u20ac\u00a3"):
        return found[0][0]
    ends = re.search(r"(?:[:=]|\b(?:is|was|are|were))[*_\s$\u20ac\u00a3]*$", text[: found[-1].start()])
    return found[-1][0] if ends else ""


def _closed(chunk: str) -> bool:
    return chunk[:1] in "([{" and chunk[-1:] in ")]}"


def _balanced(chunk: str) -> str:
    """A run of mathematics without brackets at its ends that are the sentence's."""
    while chunk:
        for opening, closing in ("()", "[]"):
            if chunk.count(opening) < chunk.count(closing) and chunk.endswith(closing):
                chunk = chunk[:-1].rstrip(" ,;:")
                break
            if chunk.count(opening) > chunk.count(closing) and (chunk.startswith(opening) or chunk.endswith(opening)):
                chunk = (chunk[1:] if chunk.startswith(opening) else chunk[:-1]).strip(" ,;:")
                break
        else:
            break
    return chunk if chunk.count("{") == chunk.count("}") else ""
