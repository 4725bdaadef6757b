"""Tasks from JSON and JSON Lines files, every broken line reported at once, and the order they are trained in."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Task

SHOWN = 20
"""Maximum number of problems listed per file; the others are counted."""


INPUT_KEYS = ("input", "prompt", "problem", "question", "query", "instruction")
LABEL_KEYS = ("label", "answer", "target", "final_answer", "expected_answer", "ground_truth")
"""Names that public data sets use, looked for in this order where none was given."""


def choose_keys(columns: Iterable[str], input_key: str | None, label_key: str | None) -> tuple[str, str | None]:
    """The fields of prompt and label: those that were given, else the first of the usual names that exists."""
    there = list(columns)
    lower = {name.lower(): name for name in reversed(there)}
    first = input_key or next((lower[k] for k in INPUT_KEYS if k in lower), INPUT_KEYS[0])
    return first, label_key or next((lower[k] for k in LABEL_KEYS if k in lower), None)


def read_tasks(
    path: Path, input_key: str | None = None, label_key: str | None = None, limit: int | None = None
) -> list[Task]:
    """Tasks of a `.jsonl` file (one object per line) or a `.json` file (a list of objects, or one list under any key).

    A prompt is a string, or chat messages of which one is the user's.

    Args:
        input_key: Field of the prompt; None: by the usual names (`INPUT_KEYS`).
        label_key: Field of the label; None: by the usual names, if there is one. Required in every item then.
        limit: Maximum number of items.

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
    keys: tuple[str, str | None] | None = None
    for where, item in _items(path, text, problems):
        if keys is None and isinstance(item, dict):
            keys = choose_keys(item, input_key, label_key)
        if limit is not None and len(tasks) >= limit:
            break
        task = _task(where, item, *(keys or ("", None)), len(tasks), problems)
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
        lists = [v for v in items.values() if isinstance(v, list)] if isinstance(items, dict) else []
        if len(lists) == 1:
            items = lists[0]
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
    prompt = as_text(item.get(input_key))
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


def as_text(prompt: Any) -> Any:
    """The user's message of a prompt given as chat messages, where there is one and nothing beside it; else unchanged."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], dict) and prompt[0].get("role") == "user":
        return prompt[0].get("content")
    return prompt


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
