"""Answers that may lead somewhere in a workflow: texts that it looks for, bare and in the forms in which models write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from marl_plugins.plan.rehearsal.noted import Notes
from marl_plugins.plan.rehearsal.patterns import examples
from marl_plugins.plan.rehearsal.vocabulary import Vocabulary

MOST_VALUES = 40
"""Texts that are tried in every form."""
MOST_KEYS = 12
"""Keys of an object."""
SHAPED = 3
"""Texts that are tried in objects of other shapes, too."""
MOST_OBJECTS = 24
"""Objects that are tried inside of something else."""
MOST_JOINED = 6
"""Texts that are tried at both sides of one that is looked for."""
MOST_CANDIDATES = 400


@dataclass
class AnswerKnowledge:
    """Facts that are known of a workflow's answers.

    Args:
        roles: Names of the roles.
        functions: By the name of a role, what its tools offer to be called; by a tool's, its own.
        vocabulary: What the workflow's code looks for.
        said: What roles said in the recipe's demonstrations.
        label: The task's label as a text; empty where it is none.
    """

    roles: Sequence[str]
    functions: dict[str, list[str]]
    vocabulary: Vocabulary
    said: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    label: str = ""


def candidates(known: AnswerKnowledge, speaker: str, notes: Notes, current: str | None) -> Iterator[str]:
    """Answers of a role or tool, the likely ones first.

    Args:
        notes: What the workflow looked for in the speaker's answers so far.
        current: What the speaker says now, where that has led somewhere.
    """
    values = values_of(known, speaker, notes)
    found: dict[str, None] = {}
    for text in islice(_in_forms(known, speaker, notes, current, values), MOST_CANDIDATES):
        if text not in found:
            found[text] = None
            yield text


def values_of(known: AnswerKnowledge, speaker: str, notes: Notes) -> list[str]:
    """The texts that an answer may hold, the likely ones first."""
    names = [role for role in known.roles if role != speaker]
    tools = [name for functions in known.functions.values() for name in functions]
    texts = [*names, *notes.texts, *known.vocabulary.texts, *tools]
    return list(dict.fromkeys(texts))[:MOST_VALUES]


def _in_forms(
    known: AnswerKnowledge, speaker: str, notes: Notes, current: str | None, values: Sequence[str]
) -> Iterator[str]:
    vocabulary = known.vocabulary
    yield from notes.texts
    yield from (lines[-1] for lines in known.said.get(speaker, ()))
    if current is not None:
        yield from _changed(current, [*values, *_numbers(vocabulary)])
    if notes.as_json:
        yield from _objects(vocabulary, values)
    if notes.as_number:
        yield from map(str, _numbers(vocabulary))
    objects = list(_objects(vocabulary, values)) if vocabulary.keys else []
    for pattern in vocabulary.patterns:
        for value in [*values[:SHAPED], *objects[:MOST_OBJECTS], *values[SHAPED:], ""]:
            yield from examples(pattern, value)
    yield from values
    for text in notes.texts:
        for value in values[:MOST_JOINED]:
            yield from (f"{value}{text}a word", f"a word{text}{value}")
        yield from (f"{key}{text}{value}" for key in vocabulary.keys for value in values[:MOST_JOINED])
    for tag in vocabulary.tags:
        yield from (f"<{tag}>{value}</{tag}>" for value in values)
    if vocabulary.fenced:
        yield from (f"```\n{value}\n```" for value in values)
        yield from (f"```json\n{text}\n```" for text in objects)
    for name in known.functions.get(speaker, ()):
        for arguments in objects[:MOST_OBJECTS] or ["{}"]:
            yield f'<tool_call>{{"name": {json.dumps(name)}, "arguments": {arguments}}}</tool_call>'
    if not notes.as_json:
        yield from objects
    yield from map(str, _numbers(vocabulary))
    yield from (f"The answer is {value}." for value in values)
    yield known.label
    yield ""


def _numbers(vocabulary: Vocabulary) -> list[float]:
    """Numbers at both sides of those that the code compares with, and a few that are usual."""
    near = [number + step for number in vocabulary.numbers for step in (0, -1, 1)]
    return list(dict.fromkeys([*near, 0, 1, 2, 10]))


def _objects(vocabulary: Vocabulary, values: Sequence[str]) -> Iterator[str]:
    """JSON under the keys that the code asks for: one text everywhere, then objects of other shapes."""
    keys = list(vocabulary.keys)[:MOST_KEYS]
    flat = [dict.fromkeys(keys, value) for value in values]
    yield from map(json.dumps, flat[:SHAPED])
    for value, plain in zip(values[:SHAPED], flat, strict=False):
        for key in keys:
            yield from (json.dumps(plain | {key: inner}) for inner in (plain, 1, [plain], [value], True, None))
        yield from (json.dumps([plain]), json.dumps([value]))
    yield from map(json.dumps, flat[SHAPED:])
    yield "{}"


def _changed(current: str, values: Sequence[Any]) -> Iterator[str]:
    """Yields what a speaker says now, with one of the texts and numbers in its JSON replaced."""
    start, end = current.find("{"), current.rfind("}") + 1
    try:
        value = json.loads(current[start:end])
    except ValueError:
        return
    for other in values:
        for changed in _with(value, other):
            yield f"{current[:start]}{json.dumps(changed)}{current[end:]}"


def _with(value: Any, other: Any) -> Iterator[Any]:
    """A JSON value with one of its leaves replaced by another value, for each of them."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (value | {key: changed} for changed in _with(inner, other))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from ([*value[:number], changed, *value[number + 1 :]] for changed in _with(inner, other))
    else:
        yield other
