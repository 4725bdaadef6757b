"""Numbers as models write them, exactly."""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

LONGEST_CHARS = 1000
"""Maximum number of characters, and of digits, of an answer that is read as a value."""

PLAIN = r"(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)"
POWER = r"(?:[eE][+-]?\d+|\s*(?:\\times|\\cdot|[*x×])\s*10\s*\^\s*(?:\{\s*[+-]?\d+\s*\}|[+-]?\d+))"
LAST = rf"(?<![\w.])\d+ \d+/\d+|{PLAIN}{POWER}?(?:/{PLAIN})?"
"""A number in a sentence: mixed, or plain with a power of ten or a denominator."""
NUMBER = re.compile(rf"([+-]?)\s*({PLAIN}|\d{{1,3}}(?: \d{{3}})+|\d+\.)({POWER})?")
RATIO = re.compile(
    r"([+-]?)\s*(?:(\d+)\s+)?(\d+)\s*/\s*(\d+)|([+-]?)\s*(\d+)?\s*\\frac\s*\{(-?\d+)\}\s*\{(\d+)\}"
)
BASED = re.compile(r"([+-]?)\s*([0-9A-Za-z]+)\s*_\s*(?:\{\s*)?(\d{1,2})(?:\s*\})?")
"""A number in another base: `2016_8`."""

FIGURE = rf"(?<![\w.])[-+]?(?:\d{{1,3}}(?: \d{{3}})+(?![\d.])|{PLAIN}(?:[eE][+-]?\d+)?)"
"""A number with its sign in a line that says one figure; its thousands may be apart."""

FUNCTION = r"(?:log|ln|sin|cos|tan|sqrt|exp|max|min|gcd|lcm|abs)(?![A-Za-z])"
COMMAND = r"\\(?:[A-Za-z]+|.)"
LETTER = r"(?<![A-Za-z])[A-Za-z](?![A-Za-z])"
SIGN = r"[-+*/^_=<>×·÷√∛∜π%‰°!|()\[\]{},:≤≥≈±∓≠¬]"
TIGHT = rf"(?:{LAST}|{COMMAND}|{FUNCTION}|{LETTER}|{SIGN})"
LOOSE = rf"[ \t]*(?:{COMMAND}|{FUNCTION}|[-+*/^=<>×·÷√π,≤≥≈±])[ \t]*"
RUN = re.compile(
    rf"(?:(?:{FUNCTION}|{COMMAND}|[-√≤≥≠±∓¬<])[ \t]+)?{TIGHT}(?:{LOOSE}(?={TIGHT})|{TIGHT}|[ "
    rf"\t]+{COMMAND})*"
)
"""Mathematics in a sentence: what hangs together without blanks, or by signs that may have blanks
around them."""
SUM = re.compile(
    rf"[(\s]*(?:[+-]\s*)?{PLAIN}[)\s]*(?:(?:[-+*/×·÷]|\\times|\\cdot|\\div)[(\s]*(?:[+-]\s*)?{PLAIN}[)\s]*)+"
)
"""A calculation with plain numbers and no result."""


TYPESET = r"(?:[$\u20ac\u00a3*`_]|\\[$(\[])"
"""What may stand between a sign and its number: of money, of Markdown, of LaTeX."""
MINUS = re.compile(
    rf"\b(?:minus|negative)\s+(?:the\s+number\s+)?(?:({TYPESET}+)\s*)?(?=[\d.(√π\\])", re.IGNORECASE
)
APART = re.compile(
    rf"(^|[^\w\s)}}\]-]\s*|\b(?:is|equals|be)\s+|(?<=\s)(?=-{TYPESET}))-[ \t]*(?:({TYPESET}+)[ "
    r"\t]*)?(?=[\d.√π\\])"
)
"""A minus that is no dash and no subtraction, apart from its number."""
SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
SCALE = re.compile(
    rf"(?<=\d)(?:[\s~]|\\[,;: ])*(?:\\text\s*\{{\s*)?\b({'|'.join(SCALES)})s?\b(?:\s*\}})?",
    re.IGNORECASE,
)
VULGAR = r"[\u00bc-\u00be\u2150-\u215e\u2189]"
RAISED = re.compile(r"([\d)}\]πa-zA-Z]?)([⁺⁻]?[⁰¹²³⁴-⁹]+|[₊₋]?[₀-₉]+)")
OF_UNITS = re.compile(r"(?:(?<=[A-Za-z]{2})|(?<=\d [A-Za-z]))(?:[⁺⁻]?[⁰¹²³⁴-⁹]+|[₊₋]?[₀-₉]+)")
"""Raised or lowered digits of a word, or of a letter after a number: `km²`, `59 m²`."""


DASHES = "[\u2010-\u2013\u2212\ufe63\uff0d]"
"""Hyphens and minus signs."""


def plain(text: str) -> str:
    """Returns a text whose numbers are written with ASCII alone: digits of all scripts, fractions
    of one sign, raised and
    lowered digits (but of units: `59 m²`), words for a minus and for powers of ten."""
    text = re.sub(r"\.{2,}", "\u2026", re.sub(DASHES, "-", text))
    text = re.sub(r"[\x00-\x08\x0e-\x1f\u200b-\u200f\u2060\ufeff]", "", text)
    if not text.isascii():
        text = re.sub(r"[^\S\n]", " ", text)
        text = re.sub(rf"(?<=\d)\s*({VULGAR})|({VULGAR})(?=\d)", r" \1\2 ", text)
        text = RAISED.sub(_marked, OF_UNITS.sub("", text))
        text = re.sub(
            rf"{VULGAR}|[^\W\D]", lambda match: unicodedata.normalize("NFKC", match[0]), text
        )
        text = re.sub(r"[^\W\D]", lambda match: str(int(match[0])), text.replace("\u2044", "/"))
    return SCALE.sub(lambda match: f"e{SCALES[match[1].lower()]}", signed(text))


def signed(text: str) -> str:
    """Returns a text whose minus signs stand right before their numbers: `$-59` for `-$59` and for
    `minus $59`."""
    return APART.sub(r"\1\2-", MINUS.sub(r"\1-", text))


def _marked(match: re.Match[str]) -> str:
    """Raised or lowered digits as LaTeX writes them."""
    digits = unicodedata.normalize("NFKC", match[2]).replace("\u2212", "-")
    return f"{match[1]}{'_' if match[2][-1] in '₀₁₂₃₄₅₆₇₈₉' else '^'}{{{digits}}}"


def number(text: str) -> Fraction | None:
    """Returns the text as a number if it is one and nothing else, or None; also where it has more
    digits than anybody needs."""
    text = re.sub(DASHES, "-", text).replace("$", "").strip()
    if len(text) > LONGEST_CHARS:
        return None
    if ratio := RATIO.fullmatch(text):
        sign, whole, above, below = ratio.groups()[:4] if ratio[3] else ratio.groups()[4:]
        if not int(below) or (
            whole and not 0 <= int(above) < int(below)
        ):  # `12 47/1` is no mixed number but a sum
            return None
        value = int(whole or 0) + Fraction(int(above), int(below))
        return -value if sign == "-" else value
    if plainly := BASED.fullmatch(text):
        return (
            Fraction(plainly[1] + plainly[2])
            if plainly[3] == "10" and plainly[2].isdecimal()
            else None
        )
    match = NUMBER.fullmatch(text)
    if not match:
        return None
    sign, digits, power = match.groups()
    exponent = int(re.findall(r"[+-]?\d+", power)[-1]) if power else 0
    if abs(exponent) > LONGEST_CHARS:
        return None
    return Fraction(sign + digits.replace(",", "").replace(" ", "")) * Fraction(10) ** exponent


def in_base(text: str) -> tuple[int, int] | None:
    """Returns base and value of a number that is written in another base than ten, or None."""
    based = BASED.fullmatch(text)
    if not based or based[3] == "10" or len(text) > LONGEST_CHARS:
        return None
    try:
        return int(based[3]), int(based[1] + based[2], int(based[3]))
    except ValueError:
        return None


def unfinished(text: str) -> bool:
    """Returns whether a text is a calculation that was not carried out; a single fraction is a
    number."""
    return number(text) is None and SUM.fullmatch(text.strip()) is not None


def close(a: Fraction, b: Fraction) -> bool:
    """Returns whether two numbers are the same but for the rounding of the sixth digit; whole
    numbers are not rounded."""
    if a.denominator == b.denominator == 1:
        return a == b
    return abs(a - b) <= Fraction(1, 10**6) * min(Fraction(1), abs(b))
