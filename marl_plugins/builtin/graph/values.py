"""A node comes to a result: a value, and the actions from which it comes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import chain
from types import NoneType
from typing import Any, ClassVar

from marl_plugins.core.trajectory import Action

Sources = tuple[Action, ...]
"""The actions that something depends on directly; theirs are their parents."""


@dataclass(slots=True, eq=False)
class Result:
    """The result of a node, or the value of another name of an expression.

    Args:
        value: What the name alone means in an expression.
        words: What was said or answered; None: the value as a role is shown it.
        output: What tools answered.
        ok: Whether an answer had the form in which it is read, or a tool's call succeeded.
        rounds: The number of rounds of a loop.
        sources: The actions that it comes from: those that were shown, and those that decided.
        action: The action itself, where the value is one role's answer.
        score: Of the answer to a case.
    """

    READ: ClassVar = ("value", "text", "output", "ok", "rounds", "score")
    """The attributes that expressions may read."""

    value: Any
    words: str | None = None
    output: str = ""
    ok: bool = True
    rounds: int = 0
    sources: Sources = ()
    action: Action | None = None
    score: float | None = None

    @property
    def text(self) -> str:
        return as_text(self.value) if self.words is None else self.words

    def __bool__(self) -> bool:
        return bool(self.value)

    def of(self, sources: Sources, rounds: int = 0) -> Result:
        """Returns the same result, as another node's."""
        return replace(self, sources=sources, rounds=rounds or self.rounds)


@dataclass(slots=True, eq=False)
class Absence:
    """The absence of a result: a node did not run.

    Args:
        sources: The actions that decided it.
    """

    sources: Sources = ()

    def __bool__(self) -> bool:
        return False

    def of(self, sources: Sources, rounds: int = 0) -> Absence:
        """Returns the same, as another node's."""
        return Absence(sources)


def union(parts: Iterable[Sources]) -> Sources:
    """Returns all actions of some sources, each once, in order."""
    nonempty = [part for part in parts if part]
    if len(nonempty) <= 1:
        return nonempty[0] if nonempty else ()
    return tuple(dict.fromkeys(chain(*nonempty)))


def plain(value: Any) -> Any:
    """Returns a result's value; anything else is itself."""
    return value.value if isinstance(value, Result) else value


def attribute(value: Any, name: str) -> Any:
    """Returns `value.name` of an expression: of a result, or an entry of a mapping, which comes
    first where it is neither an answer nor a loop's; of what was skipped it is that itself.

    Raises:
        AttributeError: It has none.
        KeyError: The mapping has no such entry.
    """
    if isinstance(value, Result):
        own = isinstance(value.value, dict) and not (value.action or value.rounds)
        if name in Result.READ and not (own and name in value.value):
            return getattr(value, name)
        value = value.value
    if isinstance(value, Absence):
        return value
    if isinstance(value, dict):
        return value[name]
    raise AttributeError(f"{kind_of(value)} has no {name!r}")


KINDS = {
    NoneType: "nothing",
    str: "a text",
    bool: "a truth value",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def kind_of(value: Any) -> str:
    """Returns what a value is, in words."""
    return KINDS.get(type(value), "something else")


def as_field(value: Any) -> Any:
    """Returns a value as a role is given it: a text, or a list with a text in it as texts, which
    are joined with blank lines; other lists and mappings become JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and (not value or any(isinstance(item, str) for item in value)):
        return [as_text(item) for item in value]
    return as_json(value) if isinstance(value, list | dict) else str(value)


def as_text(value: Any) -> str:
    """Returns a value as a role is shown it."""
    field = as_field(value)
    return "\n\n".join(field) if isinstance(field, list) else str(field)


def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
