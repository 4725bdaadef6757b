"""Compares the value of what was said with that of the label.

Numbers are compared as numbers, lists part by part and words as words; anything else (radicals,
expressions, units) is left to math-verify (math_verify.py).
"""

from __future__ import annotations

import re
from typing import Any

from marl_plugins.grading.extract import AMOUNT, TAIL, boxed, final, stated
from marl_plugins.grading.math_verify import Budget, verified
from marl_plugins.grading.numbers import (
    BASED,
    LONGEST_CHARS,
    NUMBER,
    RATIO,
    close,
    in_base,
    number,
    plain,
    unfinished,
)

MAX_EXPRESSION_DEPTH = 16
"""Maximum number of braces within each other in an answer; a deeper one is right only as the
label's text."""
WORDS = re.compile(r"[A-Za-z][A-Za-z '.-]*")
ACCEPTED = re.compile(r"\((?:both|either|each|all)\b[^()]*\baccepted\)")
SEPARATORS = re.compile(r"\s+(?:or|and)\s+")
OPEN = re.compile(
    r"[<>≤≥≠¬∨∧∪∩±∓→⇒⇔‰&\u2014]|\+\s*/|\u2026\s*\S|\n\s*\S|\b(?:not|or)\b|\d\s*_(?!\{?\s*\d{1,2}(?!\d))"
    r"|\\(?:[lg](?:eq?|t)|n(?:eq?|ot|eg)|lor|land|vee|wedge|cup|cap|mid|to|(?:right|left)arrow|pm|mp|lesssim|gtrsim)(?![A-Za-z])"
)
"""Relations, alternatives, ranges and lines in the place of one number: math-verify would take a
part of them."""
REMARK = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox|pmod)\s*\{[^{}]*\}")
LOWERED = re.compile(r"_\s*(?:\{[^{}]*\}|\S)")
TERM = re.compile(
    r"\\(?:frac|binom)\s*\{[^{}]*\}\s*\{[^{}]*\}|\\sqrt\s*(?:\[[^\]]*\])?\s*\{[^{}]*\}|(?P<raised>\^\s*(?:\{[^{}]*\}|\S))"
)
TWO = re.compile(
    r"[\d)}\]!]\s*\{?\s*(?:[-+*×·÷]|\\(?:times|cdot|div)(?![a-z]))\s*\}?\s*[\d.(\\{\[]|\d\s*/\s*\d+\.|\d\s+\d"
)
"""Two numbers that are still to be added, multiplied or divided."""
WORK = re.compile(
    r"\\(?:i?int|oint|sum|prod|lim|gcd|lcm|max|min|sup|inf|det|phantom|lfloor|rfloor|lceil|rceil|floor|ceil|bmod)"
    r"(?![A-Za-z])|(?<![A-Za-z])(?:gcd|lcm|max|min|det|floor|ceil|round|mod|rem|sum)\s*\}?\s*\\?[({]|[\u222b\u2211\u220f\u230a\u2308]"
    r"|\\begin\s*\{vmatrix|\\end\s*\{[a-z]*matrix\}\s*\^|\\partial(?![a-z])|\\prime(?![a-z])|[a-z)]'"
    r"|\}\s*\{\s*(?:d|\\(?:mathrm|text|operatorname)\s*\{\s*d\s*\})\s*[a-z](?:\s*\^[^{}]*)?\}|(?<![a-z])d\s*/\s*d[a-z]",
    re.IGNORECASE,
)
"""What a task asks for, and no answer has: an integral, a derivative, a sum, a limit, the greatest
of several numbers."""
FUNCTIONS = re.compile(
    r"\\(?:[dt]?binom|choose|log|lg|ln|exp|sin|cos|tan|cot|sec|csc|arc[a-z]+|Gamma|[lr]?[vV]ert)(?![A-Za-z])|\|"
    r"|(?<![A-Za-z])(?:log|ln|exp|sin|cos|tan|abs)\s*\("
)
"""What is still to be calculated where the label is a whole number or a fraction; roots, powers and
factorials are numbers."""
CALCULATED = re.compile(
    r"\\(?:log|lg|ln|sin|cos|tan|cot|sec|csc|arc[a-z]+)(?![A-Za-z])|(?<![A-Za-z])(?:log|ln|a?(?:rc)?(?:sin|cos|tan))\s*\("
)
"""What is still to be calculated where the label, whatever it is, has nothing of the kind."""
MATRIX = re.compile(r"\\begin\s*\{[a-z]*matrix")
SETTLED = re.compile(r"[\s(]*(?:[-\d.,()\s]|\\sqrt|\\frac|\\pi|[{}])+")
"""A side of an equation that is a number or a point, and no calculation."""
LIMIT = re.compile(r"\\to(?![a-z])(?=[^=]*=)")
MEMBER = re.compile(r"^[A-Za-z]\w*\s*(?:\\in(?![a-z])|\u2208)\s*")
OVER = re.compile(r"^\{?([^{}]*)\\over(?![a-z])([^{}]*)\}?$")
PLUS_MINUS = re.compile(r"\\pm(?![a-z])|\u00b1")
UNIT = re.compile(
    r"(?P<number>.*\d\}*\.?)[\s~]*(?P<unit>\(?(?:[cmk]m|kg|ft|(?=[a-z]*[aeiou])[a-z]{3})[a-z "
    r".'/-]*\)?)(?:\^\{?[23]\}?)?",
    re.IGNORECASE,
)
"""A number with what is counted: `59 pens`, `59 km/h`; letters that stand for numbers are no
word."""
NOTED = re.compile(
    r"(?P<number>[^a-zA-Z\\]*\d\}*\.?)[\s~]*(?P<unit>[a-z(][^\d\\]*?)(?:\^\{?[23]\}?)?",
    re.IGNORECASE,
)
"""The same where LaTeX says that it is text."""
NO_UNIT = re.compile(
    r"\b(?:or|and|not|to|at|if|of|than|more|less|least|most|plus|minus|over|by|is|wrong|pi|sqrt|mod|sin|cos|tan|log|exp|choose|base"
    r"|binary|octal|hex\w*|factorial|infinity|below|under|above|negative|false|has|was|does|perhaps|versus|fails|loses|misses|seems"
    r"|exceeds|works|always|sometimes|except|no|never|maybe|but|too|unless|alternatively|(?:in|un)\w*ly|\w+n't|point|remainder|exactly"
    r"|(?:one|two|three|four|five|six|seven|eight|nine|eleven|twelve|\w+teen|(?:twen|thir|for|fif|six|seven|eigh|nine)ty)"
    rf"|ten(?:s|ths?)?|{AMOUNT})\b",
    re.IGNORECASE,
)
"""What makes another number of it."""
SINGLE = (
    r"(?:[a-z'-]+s|feet|foot|inch|people|person|men|women|children|mice|sheep|fish|percent|per "
    r"cent|euro|cent|dollar|yen|yuan"
    r"|degree|unit|coin|pen|mile|metre|meter|hour|minute|second|day|week|month|year|[\u03bckcmd]?m|km|kg|mg|g|l|ml|ft|min|mph|kmh|hr?|sec|lb|oz|mol|hz|[svwjnacf])"
)
UNIT_WORDS = re.compile(
    rf"\(?\s*(?:[a-z]+ ){{0,2}}{SINGLE}(?: (?:per|of|in|an?|each) [a-z]+(?: "
    r"[a-z]+)?|\s*/\s*[a-z]+)?"
    r"(?: in (?:all|total)| total| altogether| left| away)?"
    r"\s*\)?\.?(?:\^\{?-?[1-4]\}?)?",
    re.IGNORECASE,
)
"""One to three words that count something: the last one is a plural or a unit, before what it is
divided by."""
INTRODUCED = re.compile(r"^\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{[^{}\d]*[:=]\s*\}\s*")
COLOURED = re.compile(r"\\(?:textcolor|color)\s*\{[^{}]*\}|\\(?:bf|rm|it)(?![a-z])")
DEGREES = re.compile(
    r"(?<=\d)\s*\^\s*\{?\s*\\circ\s*\}?\s*(?:\\(?:text|mathrm)\s*\{\s*[CF]\s*\}|[CF])$"
)
IT_IS = re.compile(
    r"^(?:(?:so|thus|hence|therefore),?\s+)?(?:it|that|this)(?:['\u2019]s|\s+is|\s+was)\s+(?:an?\s+|the\s+)?",
    re.IGNORECASE,
)
OPTION = re.compile(r"^(?:option|choice|answer)\s+", re.IGNORECASE)
YES_NO = re.compile(
    r"[\s*_`\"']*(?:(?:so|thus|hence|therefore),?\s+[*_]*)?(yes|no)\b[*_`\"']*\s*(?:[,.;:!\n]|$|because\b|since\b)",
    re.IGNORECASE,
)
"""An answer that is yes or no, and why."""
BOTH = re.compile(
    r"[\s,.;:!*_]*(?:(?:or|and|but|maybe|perhaps|also|rather|actually)[\s,*_]+)*(?:yes|no)\b[*_]*\s*(?:[,.;:!?\n]|$)|.*\b(?:yes|no)\W*$",
    re.IGNORECASE | re.DOTALL,
)
"""What says the other one after a yes or a no."""
ANOTHER = re.compile(r"\([A-Z]\)|\s(?:or|and)\s+\(?[A-Z]\b|^\W*(?:(?:or|and|not)\W+)?[A-Z]\W*$")
"""What names another choice in what a choice says."""
CHOICE = re.compile(r"\(?([A-Z])\)[\s.:]*\S.*|([A-Z])[.:]\s+\S.*", re.DOTALL)
"""A choice with what it says: `(C) 7`."""


async def right(text: str | None, label: Any) -> bool:
    """Returns whether a text's final answer has the value of a label.

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
    text = text or ""
    budget, whole = Budget(), (text.strip(), (stated(text) or "").strip(" \n.*"))
    for one in answers:
        if one.strip() in whole or await same(_final(text, one), one, budget):
            return True
    return False


def _final(text: str, label: str) -> str:
    """The final answer of a text: in its box; without one its number, or what it says last where
    the label is words."""
    words, statement = _words(label), stated(text)
    if boxed(text) is None:
        if not WORDS.fullmatch(words):
            return final(text)
        if statement is None:
            statement = re.split(r"[:=\n]", text[-TAIL:].strip())[-1]
            statement = statement if not YES_NO.match(text) or YES_NO.match(statement) else text
    if words in ("yes", "no") and (short := YES_NO.match(_untypeset(statement or ""))):
        after = _untypeset(statement or "")[short.end(1) :]
        alternatives = BOTH.match(after)
        return (
            ""
            if alternatives
            and {one.lower() for one in re.findall(r"(?i)\b(?:yes|no)\b", alternatives[0])}
            != {words}
            else short[1]
        )
    statement = IT_IS.sub("", statement or "") if WORDS.fullmatch(words) else statement or ""
    return statement.strip(" *`\"'").rstrip(" *`\"'.") if WORDS.fullmatch(words) else statement


def accepted(label: Any) -> list[str]:
    """Returns the answers that a label accepts: a JSON list has several, and so has
    `80 or 81 (both were accepted)`."""
    if isinstance(label, list):
        return [one for each in label for one in accepted(each)]
    text = str(label)
    text = text.rpartition("####")[2].strip()  # GSM8K's layout: the solution, then the number
    text = boxed(text) or text
    if not ACCEPTED.search(text):
        return [text]
    text = ACCEPTED.sub("", text).strip()
    return [text, *parts(text)[1]]


async def same(answer: str, label: str, budget: Budget | None = None) -> bool:
    """Returns whether two answers are the same value.

    Args:
        budget: The time that math-verify has left for it; default: that of one answer.

    Raises:
        InfrastructureFailure: What compares formulas does not work.
    """
    a, b = clean(answer), clean(label)
    if a == b:
        return bool(a)
    if not a or len(a) > LONGEST_CHARS or _depth(a) > MAX_EXPRESSION_DEPTH:
        return False
    if in_base(a) or in_base(b):
        return in_base(a) == in_base(b)
    budget, y = budget or Budget(), _number(b)
    if y is not None and a[-1] in "+-*/^_":  # cut off
        return False
    if "\\in" not in b:
        a = MEMBER.sub("", a)
    if y is not None and _number(a) is None and OPEN.search(LIMIT.sub("", a)):
        return False  # a relation, alternatives
    if "=" in a and "=" not in b:
        sides = a
        a = value(a) if len(parts(a)[1]) == 1 else a
        if "." not in a and not await _agree(sides.split("=")[:-1], a, budget):
            return False
    a = a if y is None else _amount(a)
    x = _number(a)
    if x is not None and y is not None:
        return close(x, y) or (
            ("%" in a) != ("%" in b)
            and close(x / 100 if "%" in a else x, y / 100 if "%" in b else y)
        )
    (kind, mine), (other, theirs) = parts(a), parts(b)
    if not a or (
        y is not None
        and (kind or a[0] == "[" or unfinished(a) or (x is None and not _is_one_number(a)))
    ):
        return False  # a set or a point, or a calculation that was not carried out
    if other == "(" and not kind and SEPARATORS.search(a):  # a point is no alternative
        return False
    calculated = CALCULATED if y is None else FUNCTIONS
    if (WORK.search(a) and not WORK.search(b)) or (
        "." not in b and calculated.search(a) and not calculated.search(b)
    ):
        return False
    if len(MATRIX.findall(a)) > max(1, len(MATRIX.findall(b))):
        return False  # the task itself, which math-verify would carry out
    if (
        x is not None and x.denominator == 1 and "%" not in a and len(theirs) == 1
    ):  # with thousands and powers of ten
        a, mine = str(x), [a]
    if max(len(mine), len(theirs)) > 1 and not (kind == other == "("):
        if len(mine) != len(theirs) or {kind, other} == {"(", "{"}:
            return False
        return await _same_parts(mine, theirs, budget, ordered="(" in (kind, other))
    if x is None and (
        NUMBER.fullmatch(a) or RATIO.fullmatch(a) or BASED.fullmatch(a)
    ):  # out of any range, or divided by 0
        return False
    if re.fullmatch("[A-Z]", letter := _words(b)) and (choice := CHOICE.fullmatch(_untypeset(a))):
        after = _untypeset(a)[choice.end(1) if choice[1] else choice.end(2) :].lstrip("). :")
        return letter == (choice[1] or choice[2]) and not ANOTHER.search(after)
    if WORDS.fullmatch(words := _words(a)) and (y is not None or WORDS.fullmatch(_words(b))):
        return words == _words(b)
    if "\\\\" in a and "\\begin" not in a:  # two lines are two answers
        return False
    return await verified(a, b, budget)


async def _agree(sides: list[str], last: str, budget: Budget) -> bool:
    """Returns whether the sides of an equation that are points, numbers or choices are the last
    one; others say how it was found."""
    for side in map(str.strip, sides):
        if re.fullmatch("[A-Z]", last) and re.fullmatch("[A-Z]", side) and side != last:
            return False
        if (
            side != last
            and SETTLED.fullmatch(side)
            and not TWO.search(side)
            and not await verified(side, last, budget)
        ):
            return False
    return True


def _is_one_number(text: str) -> bool:
    """Returns whether an expression can be one number, as far as its form says; it is none that is
    still to be calculated.

    math-verify adds up numbers that stand side by side, so that `12 47` would be 59.
    """
    text = LOWERED.sub("", REMARK.sub(" ", text))
    if TWO.search(text) or text.count("|") % 2:
        return False
    while (shorter := TERM.sub(lambda match: "" if match["raised"] else "1", text)) != text:
        text = shorter
    return len(re.findall(r"\d[\d.,]*", text)) <= 1


async def _same_parts(mine: list[str], theirs: list[str], budget: Budget, ordered: bool) -> bool:
    if ordered:
        return all([await same(a, b, budget) for a, b in zip(mine, theirs, strict=True)])
    left = list(theirs)
    for a in mine:
        for b in left:
            if await same(a, b, budget):
                left.remove(b)
                break
        else:
            return False
    return True


def clean(text: str) -> str:
    """Returns a final answer without what only typesets it."""
    text = COLOURED.sub("", INTRODUCED.sub("", text.strip())) if "\\" in text else text
    text = bold[1] if (bold := re.fullmatch(r"\s*\*\*([^*]*)\*\*\s*", text)) else text
    text = plain(text).replace("{,}", ",").replace("\\$", "")
    text = (
        text.replace("π", "\\pi ")
        .replace("×", "\\times ")
        .replace("·", "\\cdot ")
        .replace("°", "^\\circ")
    )
    text = re.sub(r"(?:√|\\sqrt(?![a-z{\[]))\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"(?<=\d)(?:\\!)?,(?:\\!)?(?=\d{3}(?!\d))", ",", text)  # 1,\!234
    text = re.sub(r"(?<=\d)\s*\\[,;:! ]\s*(?=\d{3}(?!\d))", ",", text)  # 1\,234
    text = re.sub(
        r"\\left(?![a-z])|\\right(?![a-z])|\\displaystyle(?![a-z])|\\[()\[\],;:!]|\$|~", " ", text
    )
    text = re.sub(r"\\(?:[cdst]|nice)frac(?![a-z])", r"\\frac", text)
    text = re.sub(r"\\frac\s*(\d)\s*(\d)(?!\d)", r"\\frac{\1}{\2}", text)
    text = OVER.sub(lambda match: f"\\frac{{{match[1].strip()}}}{{{match[2].strip()}}}", text)
    text = re.sub(
        r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{(\s*(?:or|and)\s*)\}", r" \1 ", text
    ).strip()
    text = text.removesuffix(".").strip()
    while whole := re.fullmatch(
        r"(?:\\(?:text|textbf|mathrm|mathbf|mbox|boxed)\s*)?\{([^{}]*)\}", text
    ):
        text = whole[1].strip()
    return text


def _amount(text: str) -> str:
    """The number of `59 pens` and of `(59)`, empty where it is another one (`59 dozen`); another
    text as it is."""
    inside = re.fullmatch(r"\(([^(),;]*)\)", text)
    text = inside[1].strip() if inside else text
    bare = _untypeset(DEGREES.sub("^\\\\circ", text))
    if number(bare.rstrip("?'")) is not None and bare[-1] in "?'":  # a doubt, feet
        return ""
    counted = UNIT.fullmatch(bare) or (NOTED.fullmatch(bare) if REMARK.search(text) else None)
    if not counted or _number(clean(counted["number"])) is None:
        return DEGREES.sub("^\\\\circ", text)
    if not UNIT_WORDS.fullmatch(counted["unit"]):
        return ""
    percent = "%" if re.match(r"per\s?cent\b", counted["unit"], re.IGNORECASE) else ""
    return "" if NO_UNIT.search(counted["unit"]) else clean(counted["number"]) + percent


def _number(text: str) -> Any:
    """A number, also with a percent sign."""
    return number(re.sub(r"\s*\\?%$", "", text))


def parts(text: str) -> tuple[str, list[str]]:
    """Returns how a list is enclosed (`(`, `{` or nothing) and its parts; one part where it is no
    list."""
    text, kind = text.strip(), ""
    if text.startswith("\\{") and text.endswith("\\}"):
        kind, text = "{", text[2:-2]
    elif re.fullmatch(r"\([^()\[\]]*\)", text):
        kind, text = "(", text[1:-1]
    pieces, depth, begin = [], 0, 0
    text = SEPARATORS.sub(",", text)
    for place, char in enumerate(text):
        depth += (char in "([{") - (char in ")]}")
        if char in ",;" and depth == 0:
            pieces.append(text[begin:place])
            begin = place + 1
    parted = [part.strip() for part in (*pieces, text[begin:]) if part.strip()]
    return kind, [one.strip() for part in parted for one in _both(part)]


def _both(part: str) -> list[str]:
    """The two values of `1 \\pm 2`."""
    sides = [side.strip() for side in PLUS_MINUS.split(part)]
    if len(sides) != 2:
        return [part]
    before, after = sides
    return [f"{before}+{after}" if before else after, f"{before}-{after}"]


def value(text: str) -> str:
    """Returns what stands behind the last equals sign; empty where two of its sides are different
    numbers."""
    sides = [side.strip() for side in re.split(r"(?<![<>!=:])=(?!=)", text)]
    numbers = [one for one in map(_number, sides) if one is not None]
    return sides[-1] if all(close(one, numbers[0]) for one in numbers) else ""


def _depth(text: str) -> int:
    depth = deepest = 0
    for char in text:
        depth += (char in "({[") - (char in ")]}")
        deepest = max(deepest, depth)
    return deepest


def _untypeset(text: str) -> str:
    text = re.sub(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}", r"\1", text)
    return " ".join(text.strip().removesuffix(".").split())


def _words(text: str) -> str:
    """A text of words without what only typesets it; letters alone are variables or choices, whose
    case counts."""
    text = re.sub(r"^\(([A-Za-z])\)$", r"\1", OPTION.sub("", _untypeset(text)))
    return text if len(text) == 1 else text.lower()
