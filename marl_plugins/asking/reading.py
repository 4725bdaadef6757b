"""Reads what a server sent: whatever it is, the result is a value of the kind that is asked for, or
`MalformedAnswer`."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from typing import Any

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What reading an answer may raise, whose form is somebody else's."""
MOST_VALUES = 100_000
"""In one answer: parsing takes the processor for a microsecond each, during which nothing else of
the run happens."""
MOST_TOKENS = 10**9
"""Of one answer; a number above it is none."""


class MalformedAnswer(Exception):
    """An answer that is not in the protocol."""


def read_json(
    text: str | bytes | bytearray, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Reads JSON values, as the standard has them: no NaN, no infinity; an integer beyond 18 digits
    is a float.

    Args:
        pairs: Makes the objects; default: a dict each.

    Raises:
        MalformedAnswer: It is not JSON, is nested too deeply, or holds too many values.
    """
    marks = map(text.count, ",[{") if isinstance(text, str) else map(text.count, (b",", b"[", b"{"))
    if sum(marks) > MOST_VALUES:
        raise MalformedAnswer(f"more than {MOST_VALUES} values")
    try:
        return json.loads(
            text,
            object_pairs_hook=pairs,
            parse_constant=_no_number,
            parse_int=_integer,
            parse_float=_short_float,
        )
    except UNREADABLE as error:
        raise MalformedAnswer(f"not JSON: {error}") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


def _integer(word: str) -> int | float:
    return int(word) if len(word) <= 18 else _short_float(word)


def _short_float(word: str) -> float:
    if len(word) > 1000:
        raise ValueError(f"a number of {len(word)} digits")
    return float(word)


def token_count(value: Any) -> int:
    """Returns a number of tokens that an answer may have taken; 0 for anything else."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= MOST_TOKENS
    ):
        return 0
    return int(value)


def seconds_of(retry_after: str) -> float | None:
    """Returns the seconds that a `Retry-After` header asks for, which names them or a date; None
    where it is neither."""
    from email.utils import parsedate_to_datetime

    try:
        seconds = float(retry_after[:100])
    except ValueError:
        try:
            seconds = parsedate_to_datetime(retry_after[:100]).timestamp() - time.time()
        except UNREADABLE:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def complaint_in(answer: Any) -> tuple[str, str] | None:
    """Returns the code and the message of an error in an answer, in the forms in which servers have
    them; None without one."""
    if not isinstance(answer, dict):
        return None
    error = answer.get("error")
    if isinstance(error, dict):
        code = error.get("code") or error.get("type")
        return str(code or "")[:100], str(error.get("message") or error)[:2000]
    if isinstance(error, str) and error:
        return "", error[:2000]
    message = answer.get("message") or answer.get("detail")
    return (str(answer.get("code") or "")[:100], str(message)[:2000]) if message else None
