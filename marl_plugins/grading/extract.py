"""Finds an answer in a text, in the places and forms that a prompt may ask for, and in no other.

    boxed      the content of the last `\\boxed{...}`
    stated     that; or what follows the last `answer: X`, `the answer is X`, `#### X`, or stands in
               `<answer>X</answer>`
    word       one of some words: boxed; alone on the last line; stated; or the only one of them
               that the text names
    final      a number with the whole expression that it is a part of: stated; or the last one of
               the text

What stands in no such place is no answer. None of them takes a part for the whole: the article in
"A clear case" is not the choice A, the s of "that's" is not south, and the 3 of `2+3` is not 3.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from marl_plugins.grading.numbers import (
    FIGURE,
    LONGEST_CHARS,
    RUN,
    number,
    plain,
    signed,
    unfinished,
)

TAIL = 4 * LONGEST_CHARS
"""Characters at the end of a text in which an answer without a box is looked for."""
NAMED = (
    r"(?<![^\W_])(?:answer|result|verdict|decision|winner|choice|vote|conclusion|judge?ment)"
    r"(?![^\W_])"
)
MARKS = r"[*_`\"']*"
STATED = re.compile(
    rf"<answer>(?P<tagged>.*?)</answer>"
    rf"|(?:{NAMED}(?:{MARKS}[ \t]+is)?{MARKS}[ \t]*[:=\uff1a]{MARKS}|(?P<prose>{NAMED}[ \t]+is[ "
    r"\t]+)"
    r"|(?<!#)####(?=[ \t]*(?!\d+[.)][ \t]+\w)(?:[^A-Za-z\s#]|\w+(?:[ \t]*=|[.!]?[ "
    r"\t]*(?:\n|$)))))(?=\s*(?P<said>[^\n]*))",
    re.IGNORECASE | re.DOTALL,
)
"""A statement of the answer. `####` is one with a value after it, and else a heading
(`#### Step 1`)."""
MARKUP = " \t\n*_`\"'\u201c\u201d\u2018\u2019#>"
TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
LEAD = re.compile(
    r"^(?:[-\u2022]\s+)?(?:the\s+|to\s+|I(?:['\u2019]ll|\s+will)?\s+)?(?:(?:option|choice|letter|answer)\s+)?\(?",
    re.IGNORECASE,
)
PRIOR = re.compile(r"(?:^|[^\w\s)}])\s*$|\b(?:is|equals|be)\s+$")
"""What may stand before a minus that is the sign of a number apart from it: nothing that it could
be subtracted from."""
DENIAL = re.compile(
    r"(?:\b(?:not|never|neither|nor|cannot|except|excluding|refuse|doubt|reject(?:s|ed)?|against|loser|(?:rather|other)\s+than|instead\s+of"
    r"|(?:any\w*|all|every\w*)\s+but)|n['\u2019]t)\b(?:\s+(?:a|an|the|to|be|is|in|it|of|by|for|quite|really|exactly|choose|say|play|go)\b)*[\s*_$]*$"
    r"|\bno[ \t]+(?:the[ \t]+)?[*_$]*$",
    re.IGNORECASE,
)
AGAINST = re.compile(
    r"[*_$)]{0,4}\?|(?:['\u2019]s(?:\s+\w+)?)?\s+(?:(?:has|is|was|does|did|can|will|should|must|would|could)(?:\s+not|n['\u2019]t|\s+(?:the\s+loser|wrong|lost|lose|fail|false|incorrect))"
    r"|loses?|lost|fail(?:s|ed)?|or\s+not)\b",
    re.IGNORECASE,
)
"""What says of the word before it that it is not the answer, or asks."""
GAP = re.compile(
    r"(?!['\u2019]\w)\W*(?:(?:or|and|to|vs|versus|through|else|maybe|perhaps|possibly|also|but|either|the|option|choice|letter"
    r"|no|alternatively|actually|instead|wait|rather)\b\W*)*",
    re.IGNORECASE,
)
CORRECTED = re.compile(r"\b(?:no|alternatively|actually|instead|wait|rather)\b|\?", re.IGNORECASE)
"""What takes the word before it back, where another word follows."""
CHOSEN = re.compile(
    r"\W*(?:(?:so|thus|hence|therefore),?\s+)?(?:I\s+(?:choose|pick|select|vote(?:\s+for)?|go\s+with|decide\s+for)"
    r"|(?:the|my)\s+(?:\w+\s+)?(?:option|choice|letter|answer|vote|one|number)\s+is)\s+(?:option\s+)?\W{0,3}(\w+)\W*",
    re.IGNORECASE,
)
CHOSEN_FIRST = re.compile(
    r"\W*(\w+)\W{0,3}\s+(?:is\s+(?:the|my)\s+(?:(?:correct|right|final|best|larger)\s+)?(?:option|choice|answer|vote|one|winner|number)"
    r"|(?:wins|prevails)(?:\s+(?:over|against)\s+(?:the\s+)?\w+)?|(?:beats|defeats)\s+(?:the\s+)?\w+)\W*",
    re.IGNORECASE,
)
"""Sentences that choose, of one word."""
REASON = re.compile(
    r"[*_`]{0,3}(\w+)[*_`.]{0,4}[ \t]*\n\s*(?:because|since|reason|explanation)\b", re.IGNORECASE
)
"""A word on the first line, and why."""
ALTERNATIVE = re.compile(
    r"\b(?:or|and|to|vs|versus|through|maybe|perhaps|possibly|also|either)\b|^[^\w.!?:(\n]*\Z",
    re.IGNORECASE,
)
"""What leaves open which one is meant, between two answers."""

OTHER = re.compile(r"(?!A\s+[a-z])\w+")
"""An answer that stands after another one; no article."""
OPEN = re.compile(
    r"0[\s,;/&*_$+\u2013\u2026.~-]+(?:(?:and|(?:up\s+)?to|through|until|vs)[\s*_$]+)?0|\b(?:or|between|maybe|perhaps|possibly|alternatively|versus)\b|0\s*\(\s*0\s*\)|(?<![-=])>|[<\u2264\u2265\u00b1]",
    re.IGNORECASE,
)
"""Two figures, each written as 0, of which it is open which one is meant; a relation."""
BOX = re.compile(r"\\boxed[ \t]*\{")
BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
AMOUNT = (
    r"(?:square|cube|double|triple|halve)d|dozens?|scores?|gross|pairs?|tens|lakhs?|crores?|kilo|k|(?:hundred|thousand|million|billion)s?(?:ths?)?"
    r"|hal(?:f|ves)|thirds|quarters|fifths|tenths"
)
"""Words after a number that make another one of it."""
AFTER = re.compile(
    rf"[*_$]*(?:(?:[ \t]|\\[,;: ])*(?:{AMOUNT})\b"
    r"|\s+(?:or[ \t]+(?:more|less|fewer|so|above|below|not)|and[ \t]+(?:a[ "
    r"\t]+)?(?:half|third|quarter)"
    r"|point|plus|minus|times(?=[ \t]+(?!in\b|per\b|a\b)\w)|remainder)\b)",
    re.IGNORECASE,
)
BEFORE = re.compile(
    r"(?:\b(?:at[ \t]+(?:least|most)|(?:more|less|fewer|greater|larger|smaller|higher|lower)[ "
    r"\t]+than"
    r"|over|under|above|below|beyond"
    r"|twice|thrice|double|triple|half(?:[ \t]+of)?|(?:square|cube)(?:[ \t]+root)?[ "
    r"\t]+of|nearly|almost)[ \t]+"
    r"|[<>\u2264\u2265][ \t]*)[*_$\u20ac\u00a3]*$",
    re.IGNORECASE,
)
"""What stands after or before a number that is not the answer itself: a bound, a multiple."""
DATE = re.compile(r"\b\d{4}-\d\d(?:-\d\d)?\b")
IN_YEAR = re.compile(r"\s*in\s+(?:[A-Z][a-z]+\s+)?(?:19|20)\d\d\s*[,:]\s+", re.IGNORECASE)


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


def stated(text: str) -> str | None:
    """Returns what a text says is its answer, without what only typesets it; None where it says so
    nowhere."""
    inside = boxed(text)
    if inside is not None:
        return inside.strip()
    statements = _statements(text)
    return statements[-1][0] if statements else None


def _statements(text: str) -> list[tuple[str, str | None]]:
    """Returns what a text says is its answer, each time, and what stands after that; None for
    prose, which may say nothing of the answer (`the result is clear`)."""
    text, statements = text[-TAIL:], []
    for one in STATED.finditer(text):
        name = "tagged" if one["tagged"] is not None else "said"
        quoted = (
            name == "tagged" or "\n" in text[one.start() : one.start("said")]
        )  # else `> 59` is a relation
        statements.append(
            (
                one[name].strip(MARKUP if quoted else MARKUP.replace(">", "")),
                None if one["prose"] else text[one.end(name) :],
            )
        )
    return statements


def negated(before: str) -> bool:
    """Returns whether what stands before an answer denies it: `not`, `I won't`,
    `anything but the`."""
    return DENIAL.search(before[-60:]) is not None


def denied(text: str, start: int, end: int) -> bool:
    """Returns whether what stands around an answer denies it: `not June`, `June is wrong`."""
    return negated(text[:start]) or AGAINST.match(text, end) is not None


def _open(between: str) -> bool:
    """Returns whether two answers with this between them leave open which one is meant."""
    return GAP.fullmatch(between) is not None and ALTERNATIVE.search(between) is not None


def word(text: str | None, words: Collection[str]) -> str:
    """Returns which of some words an answer is, as it stands in `words`; empty where it is none of
    them, or leaves it open.

    It is boxed, alone on the last line, stated, alone behind the last line's colon, or, a longer
    word than a letter, the only one that the text names. A statement that names none is none; after
    `answer: X` only what follows it counts.
    """
    text = (text or "").strip(" \t\n`")
    known = {each.lower(): each for each in words}
    inside = boxed(text)
    if inside is not None:
        return (
            _named(inside, known) if len({one.lower() for one in _names(inside, known)}) < 2 else ""
        )
    before, _, last = text.rpartition("\n")
    if alone := known.get(_bare(last).lower()):
        return (
            ""
            if negated(before) or re.search(r"\b(?:or|and|vs|versus)\W*$", before[-60:])
            else alone
        )
    for sentence in (CHOSEN, CHOSEN_FIRST):
        chosen = sentence.fullmatch(last[-200:]) if len(last) <= 200 else None
        if chosen and (len(chosen[1]) > 1 or chosen[1].isupper()) and chosen[1].lower() in known:
            return known[re.sub(r"^the\s", "", chosen[1].lower())]
    if (why := REASON.match(text)) and _names(text, known) == {why[1]}:
        return known[why[1].lower()]
    choice = re.match(r"\W*(\w)[):.]+[\s*]", text)  # `B: 3.41` and no more
    if choice and "\n" not in text and _names(text, known) == {choice[1]}:
        return choice[1]
    for statement, after in reversed(_statements(text)):
        if _bare(statement).lower() in known or _names(statement, known):
            return _named(statement, known)
        if after is not None:
            text = after
            break
    return known.get(_bare(last.rpartition(":")[2]).lower()) or _only(text, known)


def _names(text: str, known: dict[str, str]) -> set[str]:
    """The words that a text names; a letter only as it is written."""
    return {
        one
        for one in re.findall(r"\w+", text)
        if known.get(one.lower()) == one or (len(one) > 1 and one.lower() in known)
    }


def _named(said: str, known: dict[str, str]) -> str:
    """The word that a stated answer begins with, unless another one stands beside it (`A or B`); or
    the only one in it."""
    bare = _bare(said)
    match = re.match(r"\w+", bare)
    if not match or match[0].lower() not in known:
        return _only(said, known)
    if len(match[0]) == 1 and match[0].islower() and bare != match[0]:  # the article
        return ""
    gap = GAP.match(bare, match.end())
    if re.match(r"\W*\?", bare[match.end() : match.end() + 5]):
        return ""
    other = OTHER.match(bare, gap.end()) if gap else None
    aside = (
        gap and other and gap[0].endswith("(") and bare[other.end() :].strip() in ("", ")")
    )  # `B (A)`
    if gap and not (aside or _open(gap[0]) or CORRECTED.search(gap[0])):
        other = None
    answers = other and (other[0].lower() in known or re.fullmatch("[A-HJ-Z]", other[0]))
    if other and answers and other[0].lower() != match[0].lower():
        return ""
    return "" if AGAINST.match(bare, match.end()) else known[match[0].lower()]


def _only(text: str, known: dict[str, str]) -> str:
    """The only word that a text names, unless it denies it; letters are none."""
    mentions = [
        one for one in re.finditer(r"\w+", text) if len(one[0]) > 1 and one[0].lower() in known
    ]
    if len({one[0].lower() for one in mentions}) != 1:
        return ""
    denied = negated(text[: mentions[-1].start()]) or AGAINST.match(text, mentions[-1].end())
    return "" if denied else known[mentions[-1][0].lower()]


def _bare(text: str) -> str:
    """A text without what only typesets or introduces a word."""
    text = TEXT.sub(r"\1", text.replace("$", "")).strip(MARKUP)
    return LEAD.sub("", text, count=1).strip(MARKUP + "().:;,![]\\")


def final(text: str) -> str:
    """Returns the number that is a text's answer, with the whole expression that it is a part of;
    empty where there is none.

    A sum or a product that was not carried out (`2+3`, `12*7`) is none, nor are several numbers in
    a box or beside each other (`41 or 42`). A statement without a number is none; after `answer: X`
    only what follows it counts.
    """
    inside = boxed(text)
    if inside is not None:
        return _expression(inside, first=True, alone=True)
    text = re.sub(r"(?m)^[ \t]*>+[ \t]*", "", text[-TAIL:])  # quoted lines
    for statement, after in reversed(_statements(text)):
        if re.search(r"\d", plain(statement)):
            return _expression(statement, first=True)
        if after is not None:
            text = after
            break
    head, _, calculation = text.strip(MARKUP + ".)").rpartition("(")
    if re.search(r"\d", head) and unfinished(calculation.lstrip("= ")):  # `19 (2+9+8)`
        text = head
    return _expression(text, first=False)


def _expression(text: str, *, first: bool, alone: bool = False) -> str:
    text = re.sub(r"(?<=\d)[ \t]+(?=\\?%)", "", signed(TEXT.sub(r"\1", plain(text))))
    runs = [
        run for run in RUN.finditer(text) if re.search(r"\d", run[0]) and run[0][0] not in "^_"
    ]  # of a unit
    if alone and len({run[0].strip() for run in runs}) > 1:
        return ""
    runs = [
        run
        for run in runs
        if not negated(text[max(0, run.start() - 60) : run.start()])
        and not AGAINST.match(text, run.end())
    ]
    if not runs or hedged(text, runs[0 if first else -1]):
        return ""
    if beside := _beside(runs, text, first):
        return beside
    run = runs[0 if first else -1]
    before, chunk = text[: run.start()], run[0].strip("* \t=")
    if chunk.startswith("- ") and not PRIOR.search(before):  # a dash
        chunk = chunk[1:].strip()
    if (
        chunk.endswith("!")
        and (first or before.strip() or run[0].startswith("*"))
        and number(chunk.rstrip("!")) is not None
    ):  # of the sentence
        chunk = chunk.rstrip("!")
    chunk = _balanced(
        re.split(r"(?<![<>!=:])=(?!=)|\u2248|\\approx(?![a-z])", chunk)[-1].strip(" ,;:*")
    )
    if (
        "," in chunk
        and number(chunk) is None
        and not _closed(chunk)
        and not re.match(r"[.;!?*_`$\s]*(?:\n|$)", text[run.end() :])
    ):
        chunk = chunk.rpartition(",")[2].strip()  # a comma of the sentence
    inside = chunk[1:-1].strip() if _closed(chunk) else ""
    return (
        ""
        if unfinished(chunk)
        else inside
        if inside and number(inside) is not None and "," not in inside
        else chunk
    )


def hedged(text: str, found: re.Match[str]) -> bool:
    """Returns whether a number is only a bound of the answer, or a part of the amount:
    `at least 59`, `59 dozen`."""
    before = text[max(0, found.start() - 60) : found.start()]
    return AFTER.match(text, found.end()) is not None or BEFORE.search(before) is not None


def _beside(runs: list[re.Match[str]], text: str, first: bool) -> str:
    """All of the first or last numbers that stand beside each other (`41 or 42`); empty where it is
    one alone."""
    many = [runs[0 if first else -1]]
    for other in runs[1:] if first else runs[-2::-1]:
        one, two = (many[-1], other) if first else (other, many[-1])
        aside = "(" if first and two[0].startswith("(") else ""  # `19 (2+9+8)`
        if not _open(text[one.start() + len(one[0].rstrip(":")) : two.start()] + aside):
            break
        many.append(other)
    ends = sorted(one.span() for one in many)
    return "" if len(many) == 1 else text[ends[0][0] : ends[-1][1]].strip()


def lone_number(text: str) -> str:
    """Returns the number of a text that says one figure: the only one; the one that it begins with
    (`4310 cents (43.10 euros)`); or the last one, after a colon or a verb (`in 2025: 4310`). Empty
    without one, or where it leaves open which one (`34 or 35`, `10 20`)."""
    text = plain(text)
    head, equals, tail = text.rpartition("=")
    text = tail if equals and len(head) < 200 and unfinished(head) else text
    figures = list(re.finditer(FIGURE, text))
    if len(figures) > 1 and (day := IN_YEAR.match(text)):
        text = text[day.end() :]
        figures = list(re.finditer(FIGURE, text))
    if any(
        hedged(text, one) or AGAINST.match(text, one.end()) for one in figures[:1] + figures[-1:]
    ):
        return ""
    cents = [
        one for one in figures if re.match(r"[ \t]*cents?\b", text[one.end() : one.end() + 20])
    ]
    if (
        len(figures) == 2
        and len(cents) == 1
        and "(" in text
        and not negated(text[: figures[0].start()])
    ):
        return cents[0][0] if not OPEN.search(re.sub(FIGURE, "0", text)) else ""
    if (
        not figures
        or OPEN.search(re.sub(FIGURE, "0", DATE.sub("", text)))
        or negated(text[: figures[0].start()])
    ):
        return ""
    if len(figures) == 1 or not text[: figures[0].start()].strip(MARKUP + "$\u20ac\u00a3"):
        return figures[0][0]
    ends = re.search(
        r"(?:[:=]|\b(?:is|was|are|were))[*_\s$\u20ac\u00a3]*$", text[: figures[-1].start()]
    )
    verbs = re.findall(r"\b(?:is|was|are|were)[*_\s$\u20ac\u00a3]*0", re.sub(FIGURE, "0", text))
    return figures[-1][0] if ends and len(verbs) < 2 else ""


def _closed(chunk: str) -> bool:
    return chunk[:1] in "([{" and chunk[-1:] in ")]}"


def _balanced(chunk: str) -> str:
    """A run of mathematics without brackets at its ends that are the sentence's."""
    while chunk:
        if chunk.endswith("}") and chunk.count("{") < chunk.count("}"):  # of JSON
            chunk = chunk[:-1].rstrip(" ,;:")
            continue
        for opening, closing in ("()", "[]"):
            if chunk.count(opening) < chunk.count(closing) and chunk.endswith(closing):
                chunk = chunk[:-1].rstrip(" ,;:")
                break
            if chunk.count(opening) > chunk.count(closing) and (
                chunk.startswith(opening) or chunk.endswith(opening)
            ):
                chunk = (chunk[1:] if chunk.startswith(opening) else chunk[:-1]).strip(" ,;:")
                break
        else:
            break
    return chunk if chunk.count("{") == chunk.count("}") else ""
