"""Tasks from JSON, JSON Lines, CSV and Parquet files, every broken line reported at once, and the
order they are trained in."""

from __future__ import annotations

import csv
import io
import json
import random
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, time, timedelta
from decimal import Decimal
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, Where, at, first_of, meant
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Task

SUFFIXES = (".json", ".jsonl", ".csv", ".parquet")
"""Files that are read here; what else `--data.prompt_dataset` names is a data set (sources.py)."""

INPUT_KEYS = ("input", "prompt", "problem", "question", "query", "instruction")
NESTED = "reward_model.ground_truth"
"""Where verl has the label, whatever other columns its preprocessing has kept: a dot goes into a
field that is an object."""
LABEL_KEYS = (
    NESTED,
    "label",
    "answer",
    "target",
    "final_answer",
    "expected_answer",
    "ground_truth",
    "gold",
    "solution",
    "output",
)
"""Names that public data sets use, looked for in this order where none was given."""
MISSING = object()


@dataclass(frozen=True)
class Fields:
    """The fields of a file that prompt and label were taken from, and others that could have been
    the prompt."""

    prompt: str
    label: str | None
    rivals: tuple[str, ...] = ()
    numbered: bool = False
    """Whether ids are the items' numbers, and labels may be missing."""

    def __str__(self) -> str:
        label = f"{self.label} -> label" if self.label else "no label"
        return f"{self.prompt} -> prompt, {label}"


class FileTasks(list[Task]):
    """Tasks of a file, with the file, the fields that they were taken from, and the place of each
    for messages."""

    def __init__(self, tasks: Iterable[Task], path: Path, fields: Fields, places: Sequence[str]):
        super().__init__(tasks)
        self.path = path
        self.fields = fields
        self.places = places


def choose_fields(columns: Iterable[str], input_key: str | None, label_key: str | None) -> Fields:
    """Returns the fields of prompt and label: those that were given, else the first of the usual
    names that exists, with others that have one of a prompt's."""
    there = list(columns)
    lower = {name.lower(): name for name in reversed(there)}
    usual = [lower[k] for k in INPUT_KEYS if k in lower]
    label = label_key or next((lower[k] for k in LABEL_KEYS if k in lower), None)
    if input_key or not usual:
        return Fields(input_key or INPUT_KEYS[0], label)
    return Fields(usual[0], label, tuple(usual[1:]))


def read_tasks(
    path: Path, input_key: str | None = None, label_key: str | None = None, limit: int | None = None
) -> FileTasks:
    """Returns the tasks of a `.jsonl` file (one object per line), a `.json` file (the same, or a
    list of objects, or one list under any key), a `.csv` file (the first line names the fields; all
    values are texts), or a `.parquet` file.

    A prompt is a string, or chat messages: the user's, with the system's before it.

    Args:
        input_key: Field of the prompt; None: by the usual names (`INPUT_KEYS`).
        label_key: Field of the label; None: by the usual names, if any item has one. Required in
            every item then. `a.b` is the field `b` of the object `a`.
        limit: Maximum number of items.

    Raises:
        ConfigurationError: With every broken item, named by file and line (or item number).
    """
    problems: list[Problem] = []
    return tasks_of(rows_of(path, problems, limit), path, input_key, label_key, problems)


def rows_of(path: Path, problems: list[Problem], limit: int | None = None) -> list[tuple[str, Any]]:
    """Returns the items of a file with their places; problems with it are added to the list.

    Raises:
        ConfigurationError: It cannot be read at all.
    """
    if path.suffix == ".parquet":
        return _parquet(path, limit)
    try:
        text = read_text(path)
    except ConfigurationError as error:
        raise ConfigurationError(p.within(name="tasks") for p in error.problems) from None
    reader = READERS.get(path.suffix, _lines)
    return list(islice(reader(path, text, problems), limit))


def _parquet(path: Path, limit: int | None) -> list[tuple[str, Any]]:
    from pyarrow import ArrowException, parquet

    try:
        rows = parquet.read_table(path).slice(0, limit).to_pylist()
    except (OSError, ArrowException) as error:
        got = f"cannot be read: {error}"
        raise ConfigurationError(Problem("tasks.parquet", at(file=path), got)) from None
    return [(f"{path}: row {number}", plain_row(row)) for number, row in enumerate(rows, 1)]


def plain_row(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of a table with its dates and decimals as texts; what else is no JSON value is
    left for a message."""
    kinds = date | time | timedelta | Decimal
    return {key: str(value) if isinstance(value, kinds) else value for key, value in row.items()}


def tasks_of(
    items: Sequence[tuple[str, Any]],
    path: Path,
    input_key: str | None,
    label_key: str | None,
    problems: list[Problem],
    numbered: bool = False,
) -> FileTasks:
    """Returns the tasks of items with their places, as `read_tasks` does.

    Args:
        path: Where they are from.
        problems: Those that are known.
        numbered: Whether ids are the items' numbers and labels may be missing, as in data sets,
            which nobody here can change.

    Raises:
        ConfigurationError: With these problems, and every broken item.
    """
    rows = [item for _, item in items if isinstance(item, dict)]
    columns = dict.fromkeys(key for row in rows for key in row)
    for key in (NESTED, input_key, label_key):  # a field of a field is a column too
        if key and any(value_at(row, key) is not MISSING for row in rows):
            columns[key] = None
    fields = replace(choose_fields(columns, input_key, label_key), numbered=numbered)
    if columns and (missing := list(_missing(fields, input_key, columns))):
        raise ConfigurationError([*problems, *(p.within(line=items[0][0]) for p in missing)])
    tasks: list[Task] = []
    for number, (where, item) in enumerate(items):
        task = _task(where, item, fields, number, problems)
        if task:
            tasks.append(task)
    if not problems and not tasks:
        problems.append(Problem("tasks.empty_file", at(file=path), "no tasks in it"))
    if problems:
        raise ConfigurationError(first_of(problems, path))
    return FileTasks(tasks, path, fields, [where for where, _ in items])


def _missing(fields: Fields, input_key: str | None, columns: Collection[str]) -> Iterator[Problem]:
    """Fields that no item has."""
    if fields.prompt not in columns and input_key:
        yield _no_field(input_key, "data.input_key", columns)
    elif fields.prompt not in columns:
        got = f"no field {fields.prompt!r}, nor {', '.join(INPUT_KEYS[1:])}"
        fix = f"name the field of the prompt with --data.input_key: {', '.join(columns)}"
        yield Problem("tasks.no_prompt_field", got=got, fix=fix)
    if fields.label and fields.label not in columns:
        yield _no_field(fields.label, "data.label_key", columns)


def _no_field(name: str, flag: str, there: Iterable[str], where: Where = ()) -> Problem:
    got = f"no field {name!r} (--{flag})"
    return Problem("tasks.no_field", where, got, fix=meant(name, there))


def _listed(path: Path, text: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    try:
        items = json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg == "Extra data":  # one value and then others: JSON Lines
            yield from _lines(path, text, problems)
            return
        problems.append(_not_json(f"{path}:{error.lineno}", error))
        return
    lists = [v for v in items.values() if isinstance(v, list)] if isinstance(items, dict) else []
    if len(lists) == 1:
        items = lists[0]
    if not isinstance(items, list):
        several = f" with {len(lists)} lists; leave one of them in it" if lists else ""
        got = f"{items!r:.80}{several}"
        problems.append(Problem("tasks.no_list", at(file=path), got, "a list of objects"))
        return
    for number, item in enumerate(items, 1):
        yield f"{path}: item {number}", item


def _lines(path: Path, text: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", json.loads(line)
            except json.JSONDecodeError as error:
                problems.append(_not_json(f"{path}:{number}", error))


def _table(path: Path, text: str, problems: list[Problem]) -> Iterator[tuple[str, Any]]:
    csv.field_size_limit(sys.maxsize)  # the text has been read already, and prompts may be long
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        if len(set(header)) < len(header):
            got = f"two fields have the same name: {', '.join(header)}"
            problems.append(Problem("tasks.same_columns", at(line=f"{path}:1"), got))
            return
        for row in rows:
            if row and len(row) != len(header):
                where = at(line=f"{path}:{rows.line_num}")
                got = f"{len(row)} values, where line 1 names {len(header)} fields"
                problems.append(Problem("tasks.columns", where, got))
            elif row:
                yield f"{path}:{rows.line_num}", dict(zip(header, row, strict=True))
    except csv.Error as error:
        problems.append(
            Problem("files.csv", at(line=f"{path}:{rows.line_num}"), f"not CSV: {error}")
        )


READERS = {".json": _listed, ".csv": _table}
"""What reads the items of a file with their places, by its suffix; lines are read else."""


def _not_json(line: str, error: json.JSONDecodeError) -> Problem:
    return Problem("files.json", at(line=line), f"not JSON: {error.msg} at column {error.colno}")


def not_json(value: Any) -> str | None:
    """Returns why a value is no JSON value that can be written in UTF-8; None where it is one."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        return str(error)
    return None


def value_at(item: Mapping[str, Any], key: str) -> Any:
    """Returns the field of an item, where it has none of that name that of the object before the
    dot; `MISSING` where there is none."""
    if key in item:
        return item[key]
    head, _, rest = key.partition(".")
    inside = item.get(head)
    return value_at(inside, rest) if rest and isinstance(inside, Mapping) else MISSING


def _task(
    where: str, item: Any, fields: Fields, number: int, problems: list[Problem]
) -> Task | None:
    if not isinstance(item, dict):
        problems.append(Problem("tasks.no_object", at(line=where), f"{item!r:.80}", "an object"))
        return None
    if wrong := list(_wrong(at(line=where), item, fields)):
        problems += wrong
        return None
    taken = {fields.prompt, fields.label, "" if fields.numbered else "id"}
    if fields.label == NESTED:
        taken.add("reward_model")
        item = {"type": item.get("data_source", ""), **item}
    rest = {k: v for k, v in item.items() if k not in taken}
    identity = number if fields.numbered else item.get("id", number)
    label = value_at(item, fields.label) if fields.label else None
    return Task(str(identity), as_text(value_at(item, fields.prompt)), label, rest)


def _wrong(place: Where, item: dict[str, Any], fields: Fields) -> Iterator[Problem]:
    """Yields what is wrong with an item of a file."""
    prompt = as_text(value_at(item, fields.prompt))
    label = value_at(item, fields.label) if fields.label else None
    if prompt is MISSING:
        yield _no_field(fields.prompt, "data.input_key", item, place)
    elif isinstance(prompt, list):
        got = (
            f"field {fields.prompt!r} must be a non-empty string, or chat messages: the user's, "
            "and before it the system's"
        )
        fix = f"got a list of {len(prompt)}: give `tasks:`, a file with load(split)"
        yield Problem("tasks.messages", place, got, fix=fix)
    elif not isinstance(prompt, str) or not prompt.strip():
        got = f"field {fields.prompt!r} must be a non-empty string, got {prompt!r:.80}"
        yield Problem("tasks.prompt", place, got)
    if fields.label and label is MISSING:
        yield _no_field(fields.label, "data.label_key", item, place)
    elif fields.label and not fields.numbered and (empty := _empty(label)):
        fix = "give every item a label, or name another field (--data.label_key)"
        yield Problem("tasks.empty_label", place, f"field {fields.label!r} is {empty}", fix=fix)


def _empty(label: Any) -> str:
    """Returns why a label is none; empty where it is one."""
    if label is None:
        return "null"
    return "empty" if label == [] or (isinstance(label, str) and not label.strip()) else ""


def as_text(prompt: Any) -> Any:
    """Returns the text of a prompt given as chat messages, where these are the user's, or the
    system's and the user's, which are put one after the other; else unchanged."""
    if isinstance(prompt, list) and all(isinstance(each, dict) for each in prompt):
        texts = [each.get("content") for each in prompt]
        roles = [each.get("role") for each in prompt]
        if roles in (["user"], ["system", "user"]) and all(isinstance(t, str) for t in texts):
            return "\n\n".join(texts)
    return prompt


@lru_cache(2)
def epoch_order(count: int, run_seed: int, episode: int) -> Sequence[int]:
    """Returns the indices of the tasks in the order of one episode; a function of the run's seed
    and the episode alone."""
    order = list(range(count))
    random.Random(derive_seed(run_seed, "order", episode)).shuffle(order)
    return tuple(order)


def batches(tasks: Sequence[Task], run_seed: int, episode: int, size: int) -> list[list[Task]]:
    """Returns the episode's batches of tasks; the last one may be smaller."""
    order = epoch_order(len(tasks), run_seed, episode)
    return [[tasks[i] for i in order[start : start + size]] for start in range(0, len(order), size)]
