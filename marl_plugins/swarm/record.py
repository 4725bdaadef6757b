"""The content of a record: the trajectories of one task, as their words."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping, Sequence

from marl_plugins.core.exchange import RefusedRecord, TrajectoryWords, read_words
from marl_plugins.core.files import json_value

SCHEMA_VERSION = 1
MOST_SAMPLES = 1_024
"""Trajectories of one task in a record that are read."""


def key_of(task: str) -> str:
    """Returns the part of a record's name that stands for its task."""
    return hashlib.blake2b(task.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def packed(group: Sequence[Mapping[str, object]]) -> bytes:
    """Returns the content of a record of a task's trajectories; the same words give the same bytes."""
    text = json.dumps({"schema": SCHEMA_VERSION, "group": list(group)}, sort_keys=True)
    return gzip.compress(text.encode(), mtime=0)


def unpacked(content: bytes) -> list[TrajectoryWords]:
    """Returns the trajectories of a record, checked.

    Raises:
        RefusedRecord: It is none, or holds something else (`schema`).
    """
    try:
        value = json_value(content)
    except ValueError as error:
        raise RefusedRecord("schema", f"it is no JSON in UTF-8: {str(error)[:80]}") from None
    if not isinstance(value, dict) or value.get("schema") != SCHEMA_VERSION or not isinstance(value.get("group"), list):
        raise RefusedRecord("schema", f"expected an object with schema {SCHEMA_VERSION} and a group")
    if not 0 < len(value["group"]) <= MOST_SAMPLES:
        raise RefusedRecord("schema", f"a group of {len(value['group'])} trajectories; expected 1 to {MOST_SAMPLES}")
    group = [read_words(record) for record in value["group"]]
    if len({words.task for words in group}) > 1:
        raise RefusedRecord("schema", "trajectories of several tasks in one group")
    return group
