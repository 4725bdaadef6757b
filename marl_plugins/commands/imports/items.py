"""Their data files as ours: one object per line with `prompt`, `answer` if there are labels, `id`, and everything else.

Theirs are JSON lists or JSON Lines, sometimes the one under the name of the other; prompts and labels have any name, and
metadata lies in an object (or in a string with one) of its own, which is laid open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.tasks import SHOWN, as_text, choose_keys

METADATA = ("metadata", "extra_info")

TASKS = '''"""The tasks that were imported: data/train.jsonl and data/eval.jsonl."""

from pathlib import Path

from marl_plugins.core.tasks import read_tasks

DATA = Path(__file__).parent / "data"


def load(split):
    path = DATA / f"{split}.jsonl"
    return read_tasks(path, "prompt") if path.exists() else []
'''


def in_folder(path: Path, split: str) -> Path | None:
    """The file of a split where a folder was named."""
    if path.is_file():
        return path
    return next((file for ending in ("jsonl", "json") if (file := path / f"{split}.{ending}").is_file()), None)


def read_items(path: Path, input_key: str | None, label_key: str | None, metadata_key: str | None) -> list[dict[str, Any]]:
    """The items of a file in our layout.

    Raises:
        ConfigurationError: With every broken item.
    """
    rows = _rows(path)
    problems: list[str] = []
    items: list[dict[str, Any]] = []
    columns = list(rows[0][1]) if rows and isinstance(rows[0][1], dict) else []
    key, label = choose_keys(
        columns, input_key if input_key in columns else None, label_key if label_key in columns else None
    )
    for where, row in rows:
        prompt = as_text(row.get(key)) if isinstance(row, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            problems.append(f"{where}: no text under {key!r}")
            continue
        item = {"prompt": prompt}
        if label is not None and row.get(label) is not None:
            item["answer"] = row[label]
        rest = {k: v for k, v in row.items() if k not in (key, label)}
        for name in dict.fromkeys([metadata_key or "", *METADATA]):
            inner = _object(rest.get(name))
            if inner is not None and not inner.keys() & {"prompt", "answer", *(rest.keys() - {name})}:
                del rest[name]
                rest.update(inner)
        items.append({**item, **{k: v for k, v in rest.items() if k not in item}})
    labelled = sum("answer" in item for item in items)
    if labelled not in (0, len(items)):
        problems.append(f"{path}: {len(items) - labelled} of {len(items)} items have no label ({label})")
    if not rows:
        problems.append(f"{path}: no items in it")
    if problems:
        more = [f"{path}: {len(problems) - SHOWN} more problems like these"] if len(problems) > SHOWN else []
        raise ConfigurationError(problems[:SHOWN] + more)
    return items


def _rows(path: Path) -> list[tuple[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from None
    try:
        whole = json.loads(text)
        if isinstance(whole, dict):
            lists = [v for v in whole.values() if isinstance(v, list)]
            whole = lists[0] if len(lists) == 1 else [whole]
        if not isinstance(whole, list):
            raise ConfigurationError(f"{path}: expected a list of items, or one item on each line, got {whole!r:.80}")
        return [(f"{path}: item {n}", row) for n, row in enumerate(whole, 1)]
    except json.JSONDecodeError:
        pass  # one object per line
    rows, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                rows.append((f"{path}:{number}", json.loads(line)))
            except json.JSONDecodeError as error:
                problems.append(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}")
    if problems:
        raise ConfigurationError(problems[:SHOWN])
    return rows


def _object(value: Any) -> dict[str, Any] | None:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError:
            return None
    return value if isinstance(value, dict) else None


def apart(train: list[dict[str, Any]], evaluation: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The evaluation's items without those that are trained on, and how many those were; ids made to differ."""

    def words(item: dict[str, Any]) -> str:
        return " ".join(item["prompt"].lower().split())

    trained = {words(item) for item in train}
    kept = [item for item in evaluation if words(item) not in trained]
    return kept, len(evaluation) - len(kept)


def with_ids(items: Sequence[dict[str, Any]], prefix: str) -> list[dict[str, Any]]:
    """The items with ids that differ: their own where they do, else numbers."""
    own = [item.get("id") for item in items]
    good = all(isinstance(name, str | int) for name in own) and len({str(name) for name in own}) == len(own)
    return [{**item, "id": f"{prefix}{own[n] if good else n}"} for n, item in enumerate(items)]
