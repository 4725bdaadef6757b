"""Converts data files of MARTI and MAPPA to ours: one object per line with `prompt`, `answer` if
labelled, `id`, and everything else.

Theirs are JSON lists or JSON Lines, sometimes one with the suffix of the other. Prompts and labels
have any name; metadata is a nested object, or a string that holds one, and is flattened.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value
from marl_plugins.core.problems import Problem, Where, at, first_of
from marl_plugins.core.recipe.tasks import as_text, choose_fields
from marl_plugins.core.recipe.texts import read_text

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
    rows = _rows(path)
    columns = rows[0][1] if rows and isinstance(rows[0][1], dict) else {}
    fields = choose_fields(
        columns,
        input_key if input_key in columns else None,
        label_key if label_key in columns else None,
    )
    key, label = fields.prompt, fields.label
    problems: list[Problem] = []
    items: list[dict[str, Any]] = []
    for where, row in rows:
        prompt = as_text(row.get(key)) if isinstance(row, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            problems.append(Problem("imports.no_text", where, f"no text under {key!r}"))
            continue
        item = {"prompt": prompt}
        if label is not None and row.get(label) is not None:
            item["answer"] = row[label]
        rest = _flattened({k: v for k, v in row.items() if k not in (key, label)}, metadata_key)
        items.append(item | rest | item)
    without = sum("answer" not in item for item in items)
    if 0 < without < len(items):
        got = f"{without} of {len(items)} items have no label ({label})"
        problems.append(Problem("imports.no_label", at(file=path), got))
    if not rows:
        problems.append(Problem("imports.no_items", at(file=path), "has no items"))
    if problems:
        raise ConfigurationError(first_of(problems, str(path)))
    return items


def _flattened(row: dict[str, Any], metadata_key: str | None) -> dict[str, Any]:
    """A row with its metadata's keys at the top, unless they would hide others."""
    for name in dict.fromkeys([metadata_key or "", *METADATA]):
        inner = _object(row.get(name))
        if inner is not None and not inner.keys() & {"prompt", "answer", *(row.keys() - {name})}:
            row = {**{k: v for k, v in row.items() if k != name}, **inner}
    return row


def _rows(path: Path) -> list[tuple[Where, Any]]:
    """The items of one JSON value (a list, or an object with one list in it), else one object per
    line."""
    text = read_text(path)
    try:
        whole = json_value(text.encode())
    except json.JSONDecodeError:
        return _lines(path, text)
    except ValueError as error:
        problem = Problem("imports.unreadable", at(file=path), f"cannot be read: {error}")
        raise ConfigurationError(problem) from None
    if isinstance(whole, dict):
        lists = [value for value in whole.values() if isinstance(value, list)]
        whole = lists[0] if len(lists) == 1 else [whole]
    if not isinstance(whole, list):
        expected = "a list of items, or one item per line"
        problem = Problem("imports.items", at(file=path), f"{whole!r:.80}", expected)
        raise ConfigurationError(problem)
    return [(at(file=path, name=f"item {n}"), row) for n, row in enumerate(whole, 1)]


def _lines(path: Path, text: str) -> list[tuple[Where, Any]]:
    rows, problems = list[tuple[Where, Any]](), list[Problem]()
    for number, line in enumerate(text.split("\n"), 1):
        where = at(line=f"{path}:{number}")
        if line.strip():
            try:
                rows.append((where, json_value(line.encode())))
            except ValueError as error:
                problems.append(Problem("imports.not_json", where, f"not JSON: {error}"))
    if problems:
        raise ConfigurationError(first_of(problems, str(path)))
    return rows


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json_value(value.encode())
        except ValueError:
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
