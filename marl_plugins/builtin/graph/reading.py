"""A node reads this in an answer: the text itself, JSON, a tag, a fenced block, or a number.

Every reader takes one pass over the text (or twenty), so that an answer of a megabyte costs
milliseconds; what is read is a value, and never code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.builtin.graph.expressions import Expression, Scope
from marl_plugins.grading.enclosed import fenced, object_in, tagged

FORMS = ("raw", "json", "json.KEY", "tag.NAME", "code", "code.LANGUAGE", "number")
KINDS: Mapping[str, Sequence[type]] = {
    "text": [str],
    "number": [int, float],
    "whole": [int],
    "truth": [bool],
    "list": [list],
    "mapping": [dict],
}
"""Kinds of values that a JSON object's keys may be required to have."""
NUMBER = re.compile(r"-?\d{1,30}(\.\d{1,30})?")
FORM = re.compile(r"raw|number|json|code|(json|code|tag)\.[A-Za-z_][\w-]*")
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

    form: str
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
                value = object_in(text)
                legal = value is not None and all(
                    type(value.get(key)) in KINDS[kind] for key, kind in self.keys.items()
                )
                if self.name and legal:
                    return value.get(self.name), self.name in value
                return value, legal
            case "tag":
                value = tagged(text, self.name)
            case "code":
                value = fenced(text, self.name)
            case "number":
                value = number_in(text)
            case _:
                return text, bool(text.strip())
        return value, value is not None

    def example(self) -> str:
        """Returns an answer in this form."""
        match self.form:
            case "json":
                stated = {key: SAMPLES[kind] for key, kind in self.keys.items()}
                return json.dumps({self.name or "key": ["a word"], **stated})
            case "tag":
                return f"<{self.name}>a word</{self.name}>"
            case "code":
                return f"```{self.name}\npass\n```"
            case "number":
                return "1"
        return "a word"


def number_in(text: str) -> int | float | None:
    """Returns the number that a text is, of at most 30 digits before and after the point."""
    match = NUMBER.fullmatch(text.strip())
    return None if match is None else float(match[0]) if match[1] else int(match[0])
