"""Converts data files of MARTI and MAPPA to ours: one object per line with `prompt`, `answer` if
labelled, `id`, and everything else.

Theirs are JSON lists or JSON Lines, sometimes with the suffix of lists. Prompts and labels have any
name; metadata is a nested object, or a string that holds one, and is flattened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.tasks import rows_of, tasks_of

METADATA = ("metadata", "extra_info")


def find_split(path: Path, split: str) -> Path | None:
    """Returns the file of a split: the path itself, or a file in it if it is a folder."""
    if path.is_file():
        return path
    return next(
        (file for ending in ("jsonl", "json") if (file := path / f"{split}.{ending}").is_file()),
        None,
    )


def read_items(
    path: Path, input_key: str | None, label_key: str | None, metadata_key: str | None
) -> list[dict[str, Any]]:
    """Returns the items of a file in our layout.

    Raises:
        ConfigurationError: Every broken item.
    """
    problems: list[Problem] = []
    rows = rows_of(path, problems)
    columns = rows[0][1] if rows and isinstance(rows[0][1], dict) else {}
    tasks = tasks_of(
        rows,
        path,
        input_key if input_key in columns else None,
        label_key if label_key in columns else None,
        problems,
        numbered=True,
    )
    items: list[dict[str, Any]] = []
    for task in tasks:
        item = {"prompt": task.prompt}
        if task.label is not None:
            item["answer"] = task.label
        items.append(item | _flattened(dict(task.metadata), metadata_key) | item)
    return items


def _flattened(row: dict[str, Any], metadata_key: str | None) -> dict[str, Any]:
    """A row with its metadata's keys at the top, unless they would hide others."""
    for name in dict.fromkeys([metadata_key or "", *METADATA]):
        inner = _object(row.get(name))
        if inner is not None and not inner.keys() & {"prompt", "answer", *(row.keys() - {name})}:
            row = {**{k: v for k, v in row.items() if k != name}, **inner}
    return row


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    return value if isinstance(value, dict) else None


def remove_trained(
    train: list[dict[str, Any]], evaluation: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], int]:
    """Returns the evaluation's items without those that are trained on, and how many were
    removed."""

    def words(item: dict[str, Any]) -> str:
        return " ".join(item["prompt"].lower().split())

    trained = {words(item) for item in train}
    kept = [item for item in evaluation if words(item) not in trained]
    return kept, len(evaluation) - len(kept)


def with_ids(items: Sequence[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """Returns the items with unique ids: their own if those are unique, otherwise numbers."""
    ids = [str(item["id"]) for item in items if isinstance(item.get("id"), str | int)]
    if len(set(ids)) < len(items):
        ids = [str(number) for number in range(len(items))]
    return [{**item, "id": f"{prefix}{own}"} for item, own in zip(items, ids, strict=True)]


def json_lines(items: Sequence[dict[str, Any]]) -> str:
    """Returns the text of a file with an item on each line."""
    return "".join(json.dumps(item, ensure_ascii=False) + "\n" for item in items)
