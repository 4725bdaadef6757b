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
from marl_plugins.core.recipe.tasks import as_text, choose_keys
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
    columns = list(rows[0][1]) if rows and isinstance(rows[0][1], dict) else []
    key, label = choose_keys(
        columns,
        input_key if input_key in columns else None,
        label_key if label_key in columns else None,
    )
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
        items.append({**item, **{k: v for k, v in rest.items() if k not in item}})
    labelled = sum("answer" in item for item in items)
    if labelled not in (0, len(items)):
        got = f"{len(items) - labelled} of {len(items)} items have no label ({label})"
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
    text = read_text(path)
    try:
        whole = json_value(text.encode())
        if isinstance(whole, dict):
            lists = [v for v in whole.values() if isinstance(v, list)]
            whole = lists[0] if len(lists) == 1 else [whole]
        if not isinstance(whole, list):
            expected = "a list of items, or one item per line"
            raise ConfigurationError(
                Problem("imports.items", at(file=path), f"{whole!r:.80}", expected)
            )
        return [(at(file=path, name=f"item {n}"), row) for n, row in enumerate(whole, 1)]
    except json.JSONDecodeError:
        pass  # one object per line
    except ValueError as error:
        raise ConfigurationError(
            Problem("imports.unreadable", at(file=path), f"cannot be read: {error}")
        ) from None
    rows, problems = list[tuple[Where, Any]](), list[Problem]()
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append((at(line=f"{path}:{number}"), json_value(line.encode())))
            except json.JSONDecodeError as error:
                got = f"not JSON: {error.msg} at column {error.colno}"
                problems.append(Problem("imports.not_json", at(line=f"{path}:{number}"), got))
            except ValueError as error:
                problems.append(
                    Problem("imports.not_json", at(line=f"{path}:{number}"), f"not JSON: {error}")
                )
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
    ids = [item.get("id") for item in items]
    unique = all(isinstance(name, str | int) for name in ids) and len(
        {str(name) for name in ids}
    ) == len(ids)
    return [{**item, "id": f"{prefix}{ids[n] if unique else n}"} for n, item in enumerate(items)]
