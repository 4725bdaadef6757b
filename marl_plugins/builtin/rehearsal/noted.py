"""Texts that note what a workflow looks for in them: which texts, and whether JSON or a number.

A workflow gets them as the answers of its roles and tools. Parts of one (`strip()`, `split(":")`, a
slice) note for the whole. What C code does with a text (a regular expression, a parser of JSON)
cannot be noted: see vocabulary.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

LONGEST_TEXT_CHARS = 200
"""Longer texts are not remembered, in characters."""
MOST_TEXTS = 100
BYTE_ORDER_MARK = "\ufeff"
"""`json.loads` asks whether its text begins with this."""
LOOKING = (
    "startswith", "endswith", "removeprefix", "removesuffix", "find", "rfind", "index", "rindex",
    "count",
    "split", "rsplit", "partition", "rpartition", "replace", "strip", "lstrip", "rstrip",
    "lower", "upper", "casefold", "title", "capitalize", "swapcase", "splitlines", "__getitem__",
)  # fmt: skip
"""Methods whose arguments, if they are texts, are looked for, and whose results are parts of the
text."""


@dataclass
class Notes:
    """Notes of what is looked for in the answers of one role, or of one tool."""

    texts: dict[str, None] = field(default_factory=dict)
    """Texts that answers are compared with, or searched for."""
    as_json: bool = False
    as_number: bool = False
    looked: bool = False
    """Whether the workflow looks into an answer at all."""

    def look(self, *texts: object) -> None:
        """Notes that these are looked for."""
        self.looked = True
        for text in texts:
            if text == BYTE_ORDER_MARK:
                self.as_json = True
            elif (
                type(text) is str
                and text.strip()
                and len(text) <= LONGEST_TEXT_CHARS
                and len(self.texts) < MOST_TEXTS
            ):
                self.texts.setdefault(text)


class NotedText(str):
    """A text that notes what is looked for in it."""

    notes: Notes

    def __new__(cls, text: str, notes: Notes) -> NotedText:
        made = super().__new__(cls, text)
        made.notes = notes
        return made

    def __eq__(self, other: object) -> bool:
        self.notes.look(other)
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        self.notes.looked = True
        return str.__hash__(self)

    def __contains__(self, part: str) -> bool:  # type: ignore[override]
        self.notes.look(part)
        return str.__contains__(self, part)

    def __str__(self) -> str:
        return self

    def __int__(self) -> int:
        self.notes.as_number = self.notes.looked = True
        return int(plain(self))

    def __float__(self) -> float:
        self.notes.as_number = self.notes.looked = True
        return float(plain(self))

    def __deepcopy__(self, memory: dict[int, Any]) -> str:
        return plain(self)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (plain(self),)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type[str], tuple[str]]:
        return self.__reduce__()


def plain(text: str) -> str:
    """Returns the text itself, which notes nothing."""
    return str.__getitem__(text, slice(None))


def _looking(name: str) -> Callable[..., Any]:
    method = getattr(str, name)

    def look(self: NotedText, *given: Any, **named: Any) -> Any:
        self.notes.look(
            *(text for value in given for text in (value if isinstance(value, tuple) else (value,)))
        )
        return _noted(method(self, *given, **named), self.notes)

    look.__name__, look.__qualname__ = name, f"str.{name}"
    return look


def _noted(result: Any, notes: Notes) -> Any:
    """Returns what a method gave, whose texts note too."""
    if type(result) is str:
        return NotedText(result, notes)
    if type(result) in (list, tuple):
        parts: Iterable[Any] = (_noted(part, notes) for part in result)
        return type(result)(parts)
    return result


for _name in LOOKING:
    setattr(NotedText, _name, _looking(_name))
