"""A node reads this in an answer: the text itself, JSON, a tag, a fenced block, or a number.

Every reader takes one pass over the text (or twenty), so that an answer of a megabyte costs
milliseconds; what is read is a value, and never code.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.builtin.graph.expressions import Expression, Scope

FORMS = ("raw", "json", "json.KEY", "tag.NAME", "code", "code.LANGUAGE", "number")
KINDS: Mapping[str, Any] = {
    "text": str,
    "number": (int, float),
    "whole": int,
    "truth": bool,
    "list": list,
    "mapping": dict,
}
"""Kinds of values that a JSON object's keys may be required to have."""
NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
NAME = re.compile(r"[A-Za-z_][\w-]*")
MOST_OBJECTS = 20
"""Places of a text at which an object is looked for."""
SAMPLES: Mapping[str, Any] = {
    "text": "a word",
    "number": 1,
    "whole": 1,
    "truth": True,
    "list": ["a word"],
    "mapping": {},
}


@dataclass(frozen=True)
class ReadForm:
    """The way in which an answer is read.

    Args:
        form: `raw`, `json`, `tag`, `code` or `number`.
        name: The key, the tag or the language; empty: all of it, or any.
        keys: Keys that a JSON object must have, with the kind of each.
        default: The value where the answer does not have the form; None: the text itself.
        most: Maximum length of a list or text that was read.
    """

    form: str = "raw"
    name: str = ""
    keys: Mapping[str, str] = field(default_factory=dict)
    default: Expression | None = None
    most: int | None = None

    def read(self, text: str, scope: Scope) -> tuple[Any, bool]:
        """Returns what an answer says, and whether it has the form."""
        value, legal = self._found(text)
        if not legal:
            value = text if self.default is None else self.default.value(scope)
        if self.most is not None and isinstance(value, str | list):
            value = value[: self.most]
        return value, legal

    def _found(self, text: str) -> tuple[Any, bool]:
        value: Any
        match self.form:
            case "json":
                found = object_in(text)
                legal = found is not None and all(self._fits(found, key) for key in self._required)
                return (
                    found[self.name] if self.name and found is not None and legal else found
                ), legal
            case "tag":
                value = tagged(text, self.name)
            case "code":
                value = fenced(text, self.name)
            case "number":
                value = number_in(text)
            case _:
                return text, bool(text.strip())
        return value, value is not None

    @property
    def _required(self) -> list[str]:
        return [*self.keys, *([self.name] if self.name and self.name not in self.keys else [])]

    def _fits(self, found: dict[str, Any], key: str) -> bool:
        if key not in found:
            return False
        kind = self.keys.get(key)
        value = found[key]
        return kind is None or (
            isinstance(value, KINDS[kind]) and (kind == "truth" or not isinstance(value, bool))
        )

    def example(self, value: Any = None) -> str:
        """Returns an answer in this form, which says a value."""
        said = "a word" if value is None else value
        match self.form:
            case "json":
                keys = {key: said_as(kind, value) for key, kind in self.keys.items()}
                if self.name and self.name not in keys:
                    keys[self.name] = ["a word"] if value is None else value
                return json.dumps(keys)
            case "tag":
                return f"<{self.name}>{said}</{self.name}>"
            case "code":
                return f"```{self.name}\n{'pass' if value is None else value}\n```"
            case "number":
                return str(
                    said if isinstance(said, int | float) and not isinstance(said, bool) else 1
                )
        return str(said)


def said_as(kind: str, value: Any) -> Any:
    """Returns a value as one of a kind; a sample of the kind where it cannot be."""
    if kind == "list" and value is not None:
        return [value]
    fits = isinstance(value, KINDS[kind]) and (kind == "truth") == isinstance(value, bool)
    return value if fits else SAMPLES[kind]


def object_in(text: str) -> dict[str, Any] | None:
    """Returns the first JSON object in a text, of those that begin at its first braces; None where
    there is none.

    Numbers that are not finite, and texts that are no Unicode, make it none: neither could be shown
    to anybody.
    """
    decoder = json.JSONDecoder(parse_constant=_refused, parse_float=_finite)
    begin = -1
    for _ in range(MOST_OBJECTS):
        begin = text.find("{", begin + 1)
        if begin < 0:
            return None
        try:
            found, _ = decoder.raw_decode(text, begin)
            json.dumps(found, ensure_ascii=False).encode()
        except (ValueError, RecursionError):
            continue
        return found if isinstance(found, dict) else None
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
    found: str | None = None
    block: list[str] | None = None
    wanted = False
    for line in text.splitlines():
        if line.lstrip().startswith("```"):
            if block is None:
                block, said = [], line.strip().strip("`").strip().lower()
                wanted = not language or said in (
                    language.lower(),
                    {"python": "py"}.get(language.lower()),
                )
            else:
                found, block = ("\n".join(block) if wanted else found), None
        elif block is not None:
            block.append(line)
    return found


def number_in(text: str) -> int | float | None:
    """Returns the number that a text is, of at most 30 digits before and after the point."""
    match = NUMBER.fullmatch(text.strip())
    return None if match is None else float(match[0]) if match[1] else int(match[0])
