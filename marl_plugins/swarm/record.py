"""The content of a record: the trajectories of one task, as their words."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pydantic

from marl_plugins import (
    ConfigurationError,
    Problem,
    RefusedRecord,
    Task,
    TrajectoryWords,
    at,
    json_value,
    read_words,
)

SCHEMA_VERSION = 1
MOST_SAMPLES = 1_024
"""Trajectories of one task in a record that are read."""
M = TypeVar("M", bound=pydantic.BaseModel)


def key_of(task: str) -> str:
    """Returns the part of a record's name that stands for its task."""
    return hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def packed(group: Sequence[Mapping[str, object]], task: Task | None = None) -> bytes:
    """Returns the content of a record of a task's trajectories; the same words give the same bytes.

    Args:
        task: Travels too, with its label.

    Raises:
        ValueError: Label or metadata of the task are no JSON.
    """
    record: dict[str, object] = {"schema": SCHEMA_VERSION, "group": list(group)}
    if task is not None:
        record["task"] = {"label": task.label, "metadata": dict(task.metadata)}
    try:
        text = json.dumps(record, sort_keys=True, allow_nan=False)
    except TypeError as error:
        raise ValueError(f"task {task and task.id!r}: {error}") from None
    return gzip.compress(text.encode(), mtime=0)


class CarriedTask(pydantic.BaseModel):
    """The part of a record that says what a task's answers are held to."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    label: pydantic.JsonValue = None
    metadata: dict[str, pydantic.JsonValue] = {}


def carried_task(content: bytes, words: TrajectoryWords) -> Task | None:
    """Returns the task that a record carries with its label; None where it carries none.

    Raises:
        RefusedRecord: It is no task (`schema`).
    """
    value = json_value(content)
    if not isinstance(value, dict) or value.get("task") is None:
        return None
    try:
        carried = CarriedTask.model_validate(value["task"])
    except pydantic.ValidationError as error:
        raise RefusedRecord(
            "schema", f"its task: {error.errors(include_url=False, include_input=False)[0]['msg']}"
        ) from None
    return Task(words.task, words.prompt, carried.label, carried.metadata)


def unpacked(content: bytes) -> list[TrajectoryWords]:
    """Returns the trajectories of a record, checked.

    Raises:
        RefusedRecord: It is none, or holds something else (`schema`).
    """
    try:
        value = json_value(content)
    except ValueError as error:
        raise RefusedRecord("schema", f"it is no JSON in UTF-8: {str(error)[:80]}") from None
    if (
        not isinstance(value, dict)
        or value.get("schema") != SCHEMA_VERSION
        or not isinstance(value.get("group"), list)
    ):
        raise RefusedRecord(
            "schema", f"expected an object with schema {SCHEMA_VERSION} and a group"
        )
    if not 0 < len(value["group"]) <= MOST_SAMPLES:
        raise RefusedRecord(
            "schema", f"a group of {len(value['group'])} trajectories; expected 1 to {MOST_SAMPLES}"
        )
    group = [read_words(record) for record in value["group"]]
    if len({words.task for words in group}) > 1:
        raise RefusedRecord("schema", "trajectories of several tasks in one group")
    return group


def read_lines(file: Path, model: type[M]) -> list[M]:
    """Returns the lines of a file of JSON Lines, empty ones left out.

    Raises:
        ConfigurationError: Lines are something else; all of them are named.
        OSError: It cannot be read.
    """
    lines, problems = [], []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        if not line.strip():
            continue
        try:
            lines.append(model.model_validate_json(line))
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            got = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
            problems.append(Problem("swarm.answers", at(line=f"{file}:{number}"), got))
    if problems:
        raise ConfigurationError(problems)
    return lines
