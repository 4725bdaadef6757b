"""Texts that a role is shown of the values that a workflow's call gives it, and which actions are
in them."""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import ItemsView, Iterable, Iterator, KeysView, Mapping, Set, ValuesView
from typing import Any

from marl_plugins.core.trajectory import Action, Generation, ToolResult

CONTAINERS = (list, tuple, deque, Set, KeysView, ValuesView, ItemsView)
MAX_FIELD_DEPTH = 5
"""Levels of containers and attributes in which actions are looked for."""


class InvalidCall(TypeError):
    """A workflow calls a role in a way that cannot be meant, or does not await a call.

    Args:
        place: File and line of the call; None where the whole workflow is meant.
    """

    def __init__(self, problem: str, place: str | None):
        self.problem = problem
        self.place = place
        super().__init__(problem if place is None else f"{place}: {problem}")


def as_text(value: Any, what: str, place: str | None) -> tuple[str, list[Action]]:
    """Returns what a role is shown of a value (`what`, given at `place`), and the actions in it.

    An action is what it said; a list or tuple of actions and texts is joined with blank lines;
    anything else is `str(value)`.

    Raises:
        InvalidCall: Actions are in another container, whose text would be Python's notation; or the
            value, or an item of a list, has no text of its own: an iterator, a function, a tool's
            result, an object of a class without `__str__`.
    """
    if isinstance(value, str):
        return str(value), []
    if isinstance(value, Action):
        return value.text, [value]
    if isinstance(value, list | tuple) and all(isinstance(item, Action | str) for item in value):
        return "\n\n".join(map(str, value)), [item for item in value if isinstance(item, Action)]
    kind = type(value).__name__
    if isinstance(value, Iterator):
        raise InvalidCall(
            f"{what}: a {kind} has no text; write a list: [... for ... in ...]", place
        )
    for item in value if isinstance(value, list | tuple) else (value,):
        if fix := _without_text(item):
            raise InvalidCall(f"{what}: a {type(item).__name__} has no text; {fix}", place)
    if holds_action(value):
        raise InvalidCall(
            f"{what}: a {kind} that holds actions cannot be shown; give each action a field, put "
            "actions and texts into a "
            "flat list, or write the text yourself and name the actions in after=[...]",
            place,
        )
    return str(value), []


def _without_text(value: Any) -> str:
    """Returns what to write in place of a value that nobody means to show; empty: it may be
    shown."""
    if inspect.isroutine(value):
        return f"call it: {getattr(value, '__name__', 'f')}()"
    if isinstance(value, ToolResult):
        return "show its `output`"
    if isinstance(value, Generation):
        return "show the action, whose text it is"
    plain = not any(
        {"__str__", "__repr__"} & vars(kind).keys() for kind in type(value).__mro__[:-1]
    )
    return "write the text that the role is to see" if plain and not holds_action(value) else ""


def holds_action(value: Any) -> bool:
    """Returns whether an action is in a value, a container's or an object's, at any level that
    people write."""
    reached: set[int] = set()

    def holds(inner: Any, level: int) -> bool:
        if isinstance(inner, Action):
            return True
        if isinstance(inner, str) or id(inner) in reached or level > MAX_FIELD_DEPTH:
            return False
        reached.add(id(inner))
        if isinstance(inner, Mapping):
            return any(holds(item, level + 1) for item in (*inner, *inner.values()))
        items: Iterable[Any] = (
            inner if isinstance(inner, CONTAINERS) else getattr(inner, "__dict__", {}).values()
        )
        return any(holds(item, level + 1) for item in items)

    return holds(value, 0)


def listed(after: Any, what: str, place: str) -> list[Any]:
    """Returns the items of a call's `after`, which takes a list.

    Raises:
        InvalidCall: It is no list.
    """
    if isinstance(after, str | Mapping) or not isinstance(after, Iterable):
        got = repr(after) if after is None or isinstance(after, str) else type(after).__name__
        raise InvalidCall(
            f"{what}: after takes a list of actions, as in after=[x]; got {got}", place
        )
    return list(after)
