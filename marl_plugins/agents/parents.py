"""Derives which earlier answers a call has seen: those whose text stands in what is newly shown.

An answer may also be shown as the arguments of a call that it made, as an agent is that another one calls as a tool. Where the same
text was said twice in one conversation, the later turn was seen. Blind spots: paraphrase, truncation, and two branches that
happen to say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from marl_plugins.core.trajectory import Action, path_order


def derived_parents(new: str, answers: Mapping[Action, Sequence[str]]) -> list[Action]:
    """Returns the actions whose words stand in a text, at the borders of words, by their paths.

    Args:
        answers: Earlier actions with the texts that each said, in the order in which they were answered.
    """
    found = [action for action, texts in answers.items() if any(stands_in(text, new) for text in texts)]
    later = {(_opened(action).path, text) for action in found for text in (action.text.strip(),)}
    kept = []
    for action in reversed(found):
        key = (_opened(action).path, action.text.strip())
        if key in later:
            kept.append(action)
            later.remove(key)
    return sorted(kept, key=lambda action: path_order(action.path))


def stands_in(text: str, shown: str) -> bool:
    """Returns whether a text stands in another one, and is no part of a longer word there."""
    return bool(text) and text in shown and re.search(rf"(?<!\w){re.escape(text)}(?!\w)", shown) is not None


def texts_of(action: Action, arguments: Iterable[object] = ()) -> list[str]:
    """Returns the texts by which an action is recognised: its own, and those among the arguments of its calls."""
    texts = [str.__str__(action.text).strip(), *(text.strip() for value in arguments for text in _strings(value))]
    return list(dict.fromkeys(filter(None, texts)))


def _strings(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _opened(action: Action) -> Action:
    """The first turn of an action's conversation."""
    while action.before is not None:
        action = action.before
    return action
