"""A better action, where the coach is asked for one (`--coach.corrections`): how it is asked for,
and read.

    text    between two lines that carry the request's nonce: `CORRECTION 9f31c2aa` and
            `END 9f31c2aa`
    json    the field `correction` of the verdict; null where nothing needs to change

What stands there is taken as it is, and is no part of the verdict: a score in it counts for
nothing. Marks that are not one pair are none. What becomes of corrections is corrections.py's
matter.
"""

from __future__ import annotations

import json
import re
from typing import Any

from marl_plugins.asking.marked_answers import AROUND, BEFORE

MARK = re.compile(
    rf"{BEFORE}(CORRECTION|END){AROUND}([0-9a-z]+){AROUND}:?{AROUND}", re.IGNORECASE | re.ASCII
)
WHAT = (
    "the step as the member should have written it, whole, in its place and in its form, from "
    "nothing but what the member was "
    "shown (what only you know, such as the right answer, must not be in it)"
)


def instruction(nonce: str, form: str) -> str:
    """Returns what is asked in addition to the verdict."""
    if form == "json":
        return f'In "correction" give {WHAT}; null if nothing needs to change.'
    return (
        f"Unless nothing needs to change, write {WHAT}, between these two lines, before the lines "
        f"below:\nCORRECTION {nonce}\nEND {nonce}\n"
    )


def with_correction(schema: dict[str, Any]) -> dict[str, Any]:
    """Returns a verdict's schema with the field."""
    fields = {**schema["properties"], "correction": {"type": ["string", "null"]}}
    return {**schema, "properties": fields, "required": list(fields)}


def with_it(answer: str, correction: str | None, nonce: str, form: str) -> str:
    """Returns an answer with a correction, as `instruction` asks for it."""
    if form == "json":
        return json.dumps(json.loads(answer) | {"correction": correction}, ensure_ascii=False)
    return (
        answer if correction is None else f"CORRECTION {nonce}\n{correction}\nEND {nonce}\n{answer}"
    )


def taken_out(text: str, nonce: str) -> tuple[str, str | None]:
    """Returns an answer without its correction, and the correction; None without one."""
    rows = text.split("\n")
    marks = [
        (n, match)
        for n, row in enumerate(rows)
        if nonce in row.lower() and (match := MARK.fullmatch(row.strip()))
    ]
    mine = [(n, match[1].upper()) for n, match in marks if match[2].lower() == nonce]
    if [kind for _, kind in mine] != ["CORRECTION", "END"]:
        return text, None
    (first, _), (last, _) = mine
    return "\n".join([*rows[:first], *rows[last + 1 :]]), "\n".join(
        row.removesuffix("\r") for row in rows[first + 1 : last]
    )
