"""Reads the parts that a text encloses: a JSON object, the text of a tag, a fenced block.

Each takes one pass over the text (`object_in` up to twenty), so that an answer of a megabyte costs
milliseconds.
"""

from __future__ import annotations

import json
import math
import re
from itertools import islice
from typing import Any

MOST_OBJECTS = 20
"""Places of a text at which an object is looked for."""
OBJECT = re.compile(r'\{\s*"')
"""How an object with a key begins, and no formula."""


def object_in(text: str) -> dict[str, Any] | None:
    """Returns the first JSON object in a text that has a key, of those that begin at its first
    braces; None where there is none.

    Numbers that are not finite, and texts that are no Unicode, make it none: neither could be shown
    to anybody.
    """
    decoder = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)
    for begin in islice(OBJECT.finditer(text), MOST_OBJECTS):
        try:
            value: dict[str, Any] = decoder.raw_decode(text, begin.start())[0]
            json.dumps(value, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        return value
    return None


def _refused(constant: str) -> Any:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value


def tagged(text: str, name: str) -> str | None:
    """Returns what the last `<name>` that is closed encloses; of nested ones the innermost."""
    last = text.rfind(f"</{name}>")
    begin = text.rfind(f"<{name}>", 0, last) if last >= 0 else -1
    return (
        text[begin + len(name) + 2 : text.index(f"</{name}>", begin)].strip()
        if begin >= 0
        else None
    )


def fenced(text: str, language: str) -> str | None:
    """Returns the last closed block between fences, of a language or of any."""
    content: str | None = None
    block: list[str] | None = None
    matches = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if block is None:
                block, info = [], line.strip().strip("`").strip().lower()
                matches = not language or info in (
                    language.lower(),
                    {"python": "py"}.get(language.lower()),
                )
            else:
                content, block = ("\n".join(block) if matches else content), None
        elif block is not None:
            block.append(line)
    return content
