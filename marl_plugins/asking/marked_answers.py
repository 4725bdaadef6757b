"""Answers that a nonce marks, read strictly, because a wrong reading is a wrong reward.

    text    lines that carry the request's nonce: `SCORE 9f31c2aa: 7.5`
    json    one object with the nonce in it, and nothing around it (structured output)

Whoever wrote what is asked about cannot know the nonce, so nothing that a model quotes passes for
its answer. Reading takes time in proportion to the answer's length.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import pydantic

from marl_plugins.asking.reading import MalformedAnswer, read_json
from marl_plugins.core.failures import InfrastructureFailure

LONGEST_EXPLANATION_CHARS = 4000

AROUND = r"[\s*_\[\](){}\"'`]*"
"""What markdown and habit put around a word or a number; no digit and no sign."""
BEFORE = r"[\s*_\[\](){}\"'`#>|+-]*"
"""What may precede the word in its line: a list's dash, a heading, a quotation mark."""

Kept = TypeVar("Kept", bound=pydantic.BaseModel)


def value_of(text: str, name: str, nonce: str, value: str) -> str | None:
    """Returns the value of the line `NAME nonce: value`; None where there is none, or where several
    lines disagree.

    Args:
        value: A regular expression with one group.
    """
    marked, line = line_patterns(name, value)
    values = set()
    for row in lines_with(text, nonce):
        if any(word.lower() == nonce for word in marked.findall(row)):
            match = line.fullmatch(row)
            if match is None or match.group(1).lower() != nonce:
                return None
            values.add(match.group(2).lower())
    return values.pop() if len(values) == 1 else None


def lines_with(text: str, nonce: str) -> Iterator[str]:
    """Returns the lines of an answer that hold its nonce, in small letters or large ones."""
    return (row for row in text.splitlines() if len(row) > len(nonce) and nonce in row.lower())


@functools.cache
def line_patterns(name: str, value: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Compiles patterns: `NAME word` anywhere in a line, whatever stands in between, and the whole
    line `NAME word: value`."""
    marked = re.compile(rf"(?<![0-9a-z]){name}(?=[\W_]*([0-9a-z]+))", re.IGNORECASE | re.ASCII)
    line = re.compile(
        rf"{BEFORE}{name}{AROUND}([0-9a-z]+){AROUND}[:=]{AROUND}{value}{AROUND}",
        re.IGNORECASE | re.ASCII,
    )
    return marked, line


def json_object(text: str, nonce: str) -> dict[str, Any] | None:
    """Returns the one JSON object that an answer is, alone or in one fenced block, with the nonce
    in it, which is taken out; None for anything else."""
    try:
        data = read_json(_unfenced(text), _refuse_duplicates)
    except MalformedAnswer:
        return None
    return data if isinstance(data, dict) and data.pop("nonce", None) == nonce else None


def _unfenced(text: str) -> str:
    """Returns the content of the one fenced block that a text is; any other text as it is."""
    whole = text.strip()
    fence, _, rest = whole.partition("\n")
    inner, _, end = rest.rpartition("\n")
    return inner if fence.strip() in ("```", "```json") and end == "```" else whole


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({name for name, _ in pairs}) < len(pairs):
        raise ValueError("a field occurs twice")
    return dict(pairs)


def kept_as(kind: type[Kept], judgement: Mapping[str, Any]) -> Kept:
    """Returns a judgement, which may have been kept by an earlier run, in its own form.

    Raises:
        InfrastructureFailure: It has another form.
    """
    try:
        return kind.model_validate(judgement)
    except ValueError as error:
        where = "remove it from the file of --coach.cache or --coach.replay"
        raise InfrastructureFailure(
            "coach_verdict", f"a kept judgement has another form ({where}): {error}"
        ) from None
