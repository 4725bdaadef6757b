"""Tasks from JSON and JSON Lines files, every broken line reported at once, and the order they are trained in."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Task

SHOWN = 20
"""So many problems of one file are listed; the rest is counted."""


def read_tasks(path: Path, input_key: str, label_key: str | None, limit: int | None = None) -> list[Task]:
    """Tasks of a `.jsonl` file (one object per line) or a `.json` file (a list of objects).

    Args:
        input_key: Field of the prompt, a non-empty string.
        label_key: Field of the label, if there is one; required in every item then.
        limit: At most so many items.

    Raises:
        ConfigurationError: With every broken item, named by file and line (or item number).
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"tasks: cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"tasks: {path} is not UTF-8 text (byte {error.start})") from None
    problems: list[str] = []
    tasks: list[Task] = []
    for where, item in _items(path, text, problems):
        if limit is not None and len(tasks) >= limit:
            break
        task = _task(where, item, input_key, label_key, len(tasks), problems)
        if task:
            tasks.append(task)
    seen: dict[str, str] = {}
    for task in tasks:
        if task.id in seen:
            problems.append(f"{path}: the id {task.id!r} is used twice; ids name results and must differ")
        seen[task.id] = task.id
    if not problems and not tasks:
        problems.append(f"{path}: no tasks in it")
    if problems:
        more = [f"{path}: {len(problems) - SHOWN} more problems like these"] if len(problems) > SHOWN else []
        raise ConfigurationError(problems[:SHOWN] + more)
    return tasks


def _items(path: Path, text: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".json":
        try:
            items = json.loads(text)
        except json.JSONDecodeError as error:
            problems.append(
                f"{path}:{error.lineno}: not JSON: {error.msg} (one object per line belongs into a .jsonl file)"
            )
            return
        if not isinstance(items, list):
            problems.append(f"{path}: expected a list of objects, got {_kind(items)}")
            return
        for number, item in enumerate(items, 1):
            yield f"{path}: item {number}", item
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                problems.append(f"{path}:{number}: not JSON: {error.msg} at column {error.colno}")


def _task(where: str, item: Any, input_key: str, label_key: str | None, number: int, problems: list[str]) -> Task | None:
    if not isinstance(item, dict):
        problems.append(f"{where}: expected an object, got {_kind(item)}")
        return None
    before = len(problems)
    prompt = item.get(input_key)
    if input_key not in item:
        problems.append(f"{where}: no field {input_key!r} (--data.input_key){nearest(input_key, item)}")
    elif not isinstance(prompt, str) or not prompt.strip():
        problems.append(f"{where}: field {input_key!r} must be a non-empty string, got {_kind(prompt)}")
    if label_key and item.get(label_key) is None:
        problems.append(f"{where}: no field {label_key!r} (--data.label_key){nearest(label_key, item)}")
    identity = item.get("id", number)
    if not isinstance(identity, str | int):
        problems.append(f"{where}: field 'id' must be a string or an integer, got {_kind(identity)}")
    if len(problems) > before:
        return None
    rest = {k: v for k, v in item.items() if k not in (input_key, label_key, "id")}
    return Task(str(identity), str(prompt), item.get(label_key) if label_key else None, rest)


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    kind = names.get(type(value), "a number")
    return f"{kind} ({value!r})" if isinstance(value, bool | int | float) or value == "" else kind


def epoch_order(count: int, run_seed: int, episode: int) -> list[int]:
    """Indices of the tasks in the order of one episode; a function of the run's seed and the episode alone."""
    order = list(range(count))
    random.Random(derive_seed(run_seed, "order", episode)).shuffle(order)
    return order


def batches(tasks: Sequence[Task], run_seed: int, episode: int, size: int) -> list[list[Task]]:
    """The episode's batches of tasks; the last one may be smaller."""
    order = epoch_order(len(tasks), run_seed, episode)
    return [[tasks[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
