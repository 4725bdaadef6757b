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
MOST_TOKENS = 10**9
"""Of one answer; a number above it is none."""


class MalformedAnswer(Exception):
    """An answer that is not in the protocol."""


def read_json(
    text: str | bytes | bytearray, pairs: Callable[[list[tuple[str, Any]]], Any] | None = None
) -> Any:
    """Reads JSON values, as the standard has them: no NaN, no infinity.

    Args:
        pairs: Makes the objects; default: a dict each.

    Raises:
        MalformedAnswer: It is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=pairs, parse_constant=_no_number)
    except UNREADABLE as error:
        raise MalformedAnswer(f"not JSON: {error}") from None


def _no_number(word: str) -> Any:
    raise ValueError(f"{word} is not a number")


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
