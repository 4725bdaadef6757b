"""Answers that may lead somewhere in a workflow: texts that it looks for, bare and in the forms in
which models write them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from marl_plugins.builtin.rehearsal.noted import Notes
from marl_plugins.builtin.rehearsal.patterns import examples
from marl_plugins.builtin.rehearsal.vocabulary import Vocabulary

MOST_VALUES = 40
"""Texts that are tried in every form."""
MOST_KEYS = 12
"""Keys of an object."""
SHAPED = 3
"""Texts that are tried in objects of other shapes, too."""
DEEPEST = 3
"""Levels of objects."""
MOST_OBJECTS = 24
"""Objects that are tried inside of something else."""
MOST_JOINED = 6
"""Texts that are tried at both sides of one that is looked for."""
MOST_COUNTED = 2_000
"""Words of an answer that is to be long."""
BROKEN = ('"', "{", "[", "(", "<a>", "```")
"""What no parser gets to the end of."""
MOST_CANDIDATES = 1_000


@dataclass
class AnswerKnowledge:
    """Facts that are known of a workflow's answers.

    Args:
        roles: Names of the roles.
        functions: By the name of a role, what its tools offer to be called; by a tool's, its own.
        vocabulary: What the workflow's code looks for.
        said: What roles said in the recipe's demonstrations.
        label: The task's label as a text; empty where it is none.
        told: What else the task says: its id and metadata.
    """

    roles: Sequence[str]
    functions: dict[str, list[str]]
    vocabulary: Vocabulary
    said: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)
    label: str = ""
    told: Sequence[str] = ()


def candidates(
    known: AnswerKnowledge, speaker: str, notes: Notes, current: str | None
) -> Iterator[str]:
    """Yields answers of a role or tool, the likely ones first.

    Args:
        notes: What the workflow looked for in the speaker's answers so far.
        current: What the speaker says now, where that has led somewhere.
    """
    notes = replace(notes, texts=dict(notes.texts))  # both grow while trials are played
    known = replace(known, vocabulary=replace(known.vocabulary, keys=dict(known.vocabulary.keys)))
    values = values_of(known, speaker, notes)
    found: dict[str, None] = {}
    for text in islice(_in_forms(known, speaker, notes, current, values), MOST_CANDIDATES):
        if text not in found:
            found[text] = None
            yield text


def values_of(known: AnswerKnowledge, speaker: str, notes: Notes) -> list[str]:
    """Returns the texts that an answer may hold, the likely ones first."""
    names = [role for role in known.roles if role != speaker]
    tools = [name for functions in known.functions.values() for name in functions]
    texts = [
        *names,
        *notes.texts,
        *known.vocabulary.texts,
        *tools,
        *known.told,
        *known.vocabulary.others,
    ]
    return list(dict.fromkeys(texts))[:MOST_VALUES]


def _in_forms(
    known: AnswerKnowledge, speaker: str, notes: Notes, current: str | None, values: Sequence[str]
) -> Iterator[str]:
    vocabulary = known.vocabulary
    yield from notes.texts
    yield from (lines[-1] for lines in known.said.get(speaker, ()))
    if current is not None:
        inner = [dict.fromkeys(_keys(vocabulary), value) for value in values[:SHAPED]]
        shapes: list[Any] = [*inner, *map(json.dumps, inner), [], True, None]
        yield from _changed(
            current, [*values[:MOST_JOINED], *_numbers(vocabulary), *values[MOST_JOINED:], *shapes]
        )
    if notes.as_json:
        yield from _objects(vocabulary, values)
    if notes.as_number:
        yield from map(str, _numbers(vocabulary))
    objects = list(_objects(vocabulary, values)) if vocabulary.keys else []
    for pattern in vocabulary.patterns:
        numbers = list(map(str, _numbers(vocabulary)))
        for value in [*values[:SHAPED], *objects[:MOST_OBJECTS], *values[SHAPED:], *numbers, ""]:
            yield from examples(pattern, value)
    yield from values
    for text in notes.texts:
        for value in values[:MOST_JOINED]:
            yield from (f"{value}{text}a word", f"a word{text}{value}")
        yield from (
            f"{key}{text}{value}" for key in vocabulary.keys for value in values[:MOST_JOINED]
        )
    for tag in vocabulary.tags:
        yield from (f"<{tag}>{value}</{tag}>" for value in values)
    if vocabulary.markup:
        yield from _trees(vocabulary, notes, values[:MOST_JOINED])
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
    yield from _phrases(known, speaker, notes, values)


def _phrases(
    known: AnswerKnowledge, speaker: str, notes: Notes, values: Sequence[str]
) -> Iterator[str]:
    """Several texts in one: after a word or a separator, as a call, between tags, counted."""
    vocabulary = known.vocabulary
    some, numbers = values[:MOST_JOINED], _numbers(vocabulary)
    leading = list(dict.fromkeys([*notes.texts, *vocabulary.texts]))[:MOST_VALUES]
    for text in leading:
        yield from (f"{text}{between}{value}" for value in some for between in ("", " ", ": "))
    yield from (
        f"{value}{text}{number}" for text in notes.texts for value in some for number in numbers
    )
    yield from (
        f"{first}{text}{value}" for text in notes.texts for first in leading for value in some
    )
    for name in [
        *known.functions.get(speaker, ()),
        *(text for text in leading if text.isidentifier()),
    ]:
        for value in some:
            yield f'{name}("{value}")'
            yield from (f'{name}({key}="{value}")' for key in list(vocabulary.keys)[:SHAPED])
    if vocabulary.lengths:
        for count in [round(number) for number in numbers if 2 <= number <= MOST_COUNTED]:
            yield "a" * count
            yield from (f"{'word ' * count}{value}" for value in some)
    for pattern in vocabulary.patterns:
        yield from ("\n".join(examples(pattern, value)[:1] * 3) for value in some)
    yield from BROKEN
    yield from (f"\\boxed{{{value}}}" for value in values)
    yield from (", ".join([str(number)] * 3) for number in numbers)


def _trees(vocabulary: Vocabulary, notes: Notes, values: Sequence[str]) -> Iterator[str]:
    """Elements, and elements in others."""
    tags = list(
        dict.fromkeys([*notes.texts, *vocabulary.texts, *vocabulary.keys, *vocabulary.others])
    )[:MOST_KEYS]
    yield from (f"<{tag}>{value}</{tag}>" for tag in tags for value in values)
    yield from (
        f"<{a}><{b}>{value}</{b}></{a}>" for a in tags for b in tags if a != b for value in values
    )


def _numbers(vocabulary: Vocabulary) -> list[float]:
    """Numbers at both sides of those that the code compares with, and a few that are usual."""
    near = [number + step for number in vocabulary.numbers for step in (0, -1, 1)]
    return list(dict.fromkeys([*near, 0, 1, 2, 10]))


def _objects(vocabulary: Vocabulary, values: Sequence[str]) -> Iterator[str]:
    """JSON under the keys that the code asks for: one text everywhere, then objects of other
    shapes."""
    keys = _keys(vocabulary)
    flat = [dict.fromkeys(keys, value) for value in values]
    yield from map(json.dumps, flat[:SHAPED])
    for name in reversed(vocabulary.classes):  # one that holds others is defined after them
        yield from (json.dumps(object_of(name, vocabulary, value)) for value in values)
    for value, plain in zip(values[:SHAPED], flat, strict=False):
        for key in keys:
            inners = (plain, 1, [plain], [value], True, None, json.dumps(plain), [plain, plain])
            yield from (json.dumps(plain | {key: inner}) for inner in inners)
        yield from (json.dumps([plain]), json.dumps([value]))
    yield from map(json.dumps, flat[SHAPED:])
    yield "{}"


def object_of(name: str, vocabulary: Vocabulary, value: str, level: int = 0) -> Any:
    """Returns an object with the fields of a class, in which a text stands wherever the annotations
    allow it."""
    fields = vocabulary.classes[name] if level < DEEPEST else {}
    return {
        key: _as_annotated(annotation, vocabulary, value, level)
        for key, annotation in fields.items()
    }


def _as_annotated(annotation: ast.expr, vocabulary: Vocabulary, value: str, level: int) -> Any:
    """A value of an annotated field: the text, unless it is to be something else."""
    if isinstance(annotation, ast.BinOp):  # `str | None`
        return _as_annotated(annotation.left, vocabulary, value, level)
    of = annotation.slice if isinstance(annotation, ast.Subscript) else None
    outer = annotation.value if isinstance(annotation, ast.Subscript) else annotation
    name = str(getattr(outer, "attr", getattr(outer, "id", getattr(outer, "value", ""))))
    if name in vocabulary.classes:
        return object_of(name, vocabulary, value, level + 1)
    if name == "Literal" and of is not None:
        constants = [node.value for node in ast.walk(of) if isinstance(node, ast.Constant)]
        options = [option for option in constants if isinstance(option, str | int | float)]
        return value if value in options else next(iter(options), None)
    first = of.elts[0] if isinstance(of, ast.Tuple) and of.elts else of
    if name in ("Optional", "Annotated", "Union") and first is not None:
        return _as_annotated(first, vocabulary, value, level)
    if name.lower() in ("list", "sequence", "tuple", "set"):
        return [value if first is None else _as_annotated(first, vocabulary, value, level)]
    if name.lower() in ("dict", "mapping"):
        return {value: value}
    return {"int": 1, "float": 1.0, "bool": True}.get(name, value)


def _keys(vocabulary: Vocabulary) -> list[str]:
    """The keys of an object: those that the code asks for, or else texts of it that may be some."""
    return list(vocabulary.keys or filter(str.isidentifier, vocabulary.others))[:MOST_KEYS]


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
            yield from (
                [*value[:number], changed, *value[number + 1 :]] for changed in _with(inner, other)
            )
    else:
        if isinstance(value, str) and value.startswith(
            "{"
        ):  # JSON in a text of it, such as the arguments of a call
            yield from _changed(value, [other])
        yield other
