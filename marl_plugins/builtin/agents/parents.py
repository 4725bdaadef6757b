"""Derives which earlier answers a call has seen: those whose text stands in what is newly shown.

An answer may also be shown as the arguments of a call that it made, as an agent is that another one
calls as a tool. Where the same text was said twice in one conversation, the later turn was seen;
where branches say it in the same turn, the last by path, because
arrival depends on timing. Blind spots: paraphrase, truncation, and two conversations that happen to
say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from marl_plugins.core.trajectory import Action, path_order


def derived_parents(new: str, answers: Mapping[Action, Sequence[str]]) -> list[Action]:
    """Returns the actions whose words stand in a text, at the borders of words, by their paths.

    Args:
        answers: Earlier actions with the texts that each said.
    """
    latest: dict[tuple[str, str], Action] = {}
    for action in sorted(answers, key=lambda action: (action.turn, path_order(action.path))):
        if any(stands_in(text, new) for text in answers[action]):
            latest[action.conversation[0].path, action.text.strip()] = action
    return sorted(latest.values(), key=lambda action: path_order(action.path))


def stands_in(text: str, shown: str) -> bool:
    """Returns whether a text stands in another one, and is no part of a longer word there."""
    start = shown.find(text) if text else -1
    while start >= 0:
        end = start + len(text)
        if not (_in_word(shown[start - 1 : start]) or _in_word(shown[end : end + 1])):
            return True
        start = shown.find(text, start + 1)
    return False


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"


def texts_of(action: Action, arguments: Iterable[object] = ()) -> list[str]:
    """Returns the texts by which an action is recognised: its own, and those among the arguments of
    its calls."""
    texts = [
        str.__str__(action.text).strip(),
        *(text.strip() for value in arguments for text in _strings(value)),
    ]
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
