"""The content of a record: the trajectories of one task, as their words."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import pydantic

from marl_plugins import (
    ConfigurationError,
    Problem,
    RefusedRecord,
    Task,
    TrajectoryWords,
    at,
    json_value,
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


class CarriedTask(pydantic.BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """The part of a record that says what a task's answers are held to."""

    label: pydantic.JsonValue = None
    metadata: dict[str, pydantic.JsonValue] = {}


class Record(pydantic.BaseModel, frozen=True, hide_input_in_errors=True):
    """What a record holds: trajectories of one task."""

    schema_version: Literal[1] = pydantic.Field(alias="schema")
    group: Annotated[list[TrajectoryWords], pydantic.FailFast()] = pydantic.Field(
        min_length=1, max_length=MOST_SAMPLES
    )
    carried: CarriedTask | None = pydantic.Field(None, alias="task")

    @property
    def task(self) -> Task | None:
        """The task with the sender's label; None where the record carries none."""
        if self.carried is None:
            return None
        words = self.group[0]
        return Task(words.task, words.prompt, self.carried.label, self.carried.metadata)


def unpacked(content: bytes) -> Record:
    """Returns what a record holds, checked.

    Raises:
        RefusedRecord: It is none, or holds something else (`schema`).
    """
    try:
        record = Record.model_validate(json_value(content))
    except ValueError as error:
        raise RefusedRecord("schema", str(error)[:200]) from None
    if len({words.task for words in record.group}) > 1:
        raise RefusedRecord("schema", "trajectories of several tasks in one group")
    return record


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
