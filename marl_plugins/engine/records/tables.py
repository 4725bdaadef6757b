"""Tables of a run's actions, and how they are written.

    actions   one row per action with its ids, scores and advantages, and whether it was trained on
    trace     one row per action with what it asked of engines and tools, and when
              (engine/records/trace.py)

Plugins bring others (`marl_tables`). Rows are read one by one and written in portions, so a long
run needs no more memory than a short one.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import replacing
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import encodable
from marl_plugins.core.table import Account, Table
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.records.read import reason_left_out
from marl_plugins.engine.records.trace import fork_of, trace_of

PORTION_ROWS = 1000
"""Rows that are written at a time."""
FORMS = (".parquet", ".arrow", ".jsonl")
Row = dict[str, Any]
Write = Callable[[Sequence[Row]], None]


def row_of(trajectory: Trajectory, action: Action) -> Row:
    """Returns an action as a row of the table of actions."""
    reason = reason_left_out(action)
    values = (
        trajectory.step,
        encodable(trajectory.task.id),
        trajectory.sample,
        action.path,
        fork_of(trajectory),
        action.role,
        action.policy,
        action.generation.version,
        action.generation.newest,
        action.turn,
        reason is None,
        reason,
        action.generation.finish,
        trajectory.outcome_of(action.role),
        action.score,
        action.reward,
        action.returns,
        action.advantage,
        action.context_ids,
        action.generation.ids,
        action.generation.logprobs,
        action.trainer_logprobs,
        action.advantages,
        encodable(action.text),
    )
    return dict(zip(ACTIONS, values, strict=True))


ACTIONS = {
    "step": "int64",
    "task": "string",
    "sample": "int64",
    "action": "string",
    "fork": "string",
    "role": "string",
    "policy": "string",
    "version": "int64",
    "newest_version": "int64",
    "turn": "int64",
    "trained": "bool",
    "left_out": "string",
    "finish": "string",
    "outcome": "double",
    "score": "double",
    "reward": "double",
    "return": "double",
    "advantage": "double",
    "context_ids": "ids",
    "ids": "ids",
    "logprobs": "numbers",
    "trainer_logprobs": "numbers",
    "advantages": "numbers",
    "text": "string",
}
TRACE = {
    "step": "int64",
    "task": "string",
    "sample": "int64",
    "action": "string",
    "fork": "string",
    "role": "string",
    "policy": "string",
    "parents": "texts",
    "start": "double",
    "answered": "double",
    "end": "double",
    "tokens_in": "int64",
    "tokens_out": "int64",
    "tools": "calls",
}


@dataclass
class PolicyAccount:
    """What became of the actions of one policy."""

    versions: set[int] = field(default_factory=set)
    trained: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, action: Action) -> None:
        self.versions |= {action.generation.version, action.generation.newest}
        reason = reason_left_out(action)
        self.trained += reason is None
        self.left_out.update([reason] if reason else [])
        if not action.replayed:  # a fork's words that its original has said
            self.tokens.update(shown=len(action.context_ids), sampled=len(action.generation.ids))

    def values(self) -> dict[str, Any]:
        return {
            "versions": [min(self.versions), max(self.versions)],
            "actions": self.trained + self.left_out.total(),
            "trained": self.trained,
            "left_out": dict(self.left_out.most_common()),
            "tokens_shown": self.tokens["shown"],
            "tokens_sampled": self.tokens["sampled"],
        }


def accounts_of(actions: Iterable[tuple[Trajectory, Action]]) -> Account:
    """Returns what became of the actions of every policy."""
    accounts: defaultdict[str, PolicyAccount] = defaultdict(PolicyAccount)
    for _, action in actions:
        accounts[action.policy].add(action)
    return {policy: account.values() for policy, account in sorted(accounts.items())}


TABLES = {
    "actions": Table(
        ACTIONS,
        lambda run, selection, words: (row_of(*pair) for pair in run.actions(selection)),
        lambda run, selection, words: accounts_of(run.actions(selection)),
        about="actions with ids and scores",
    ),
    "trace": Table(
        TRACE,
        lambda run, selection, words: (row.model_dump() for row in trace_of(run, selection)),
        about="requests to engines and tools with their times",
    ),
}


def write_table(rows: Iterator[Row], columns: Mapping[str, str], to: str) -> int:
    """Writes a table, and returns the number of its rows. The file is there when all of it is; a
    table without rows is not written.

    Args:
        columns: As of `Table`.
        to: The file, whose ending is its form; - prints JSON Lines.

    Raises:
        ConfigurationError: It cannot be written, or what writes it is not installed.
    """
    path = Path(to)
    if to == "-":
        return sum(print(json.dumps(row)) is None for row in rows)
    if path.suffix not in FORMS:
        expected = f"a name that ends in {' or '.join(FORMS)}, or -"
        raise ConfigurationError(
            Problem("export.form", at(flag="to", file=path), expected=expected)
        )
    count = 0
    with replacing(path, "to") as part:
        with (
            json_lines(part)
            if path.suffix == ".jsonl"
            else arrow(part, path.suffix, columns) as write
        ):
            while portion := list(itertools.islice(rows, PORTION_ROWS)):
                write(portion)
                count += len(portion)
        if not count:
            part.unlink()
    return count


@contextmanager
def json_lines(path: Path) -> Iterator[Write]:
    """Writes rows as JSON Lines."""
    with path.open("w", encoding="utf-8") as file:
        yield lambda rows: file.writelines(json.dumps(row) + "\n" for row in rows)


@contextmanager
def arrow(path: Path, form: str, columns: Mapping[str, str]) -> Iterator[Write]:
    """Writes rows as Parquet or as an Arrow file.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        got, fix = "pyarrow is not installed", "pip install 'openrlhf-marl[tables]'"
        raise ConfigurationError(Problem("export.extra", at(flag="to"), got, fix=fix)) from None
    types = nested_types(pyarrow)
    schema = pyarrow.schema([(name, types.get(kind) or kind) for name, kind in columns.items()])
    writer: AbstractContextManager[Any] = (
        pyarrow.parquet.ParquetWriter(str(path), schema)
        if form == ".parquet"
        else pyarrow.ipc.new_file(str(path), schema)
    )
    with writer as file:
        yield lambda rows: file.write_table(pyarrow.Table.from_pylist(list(rows), schema))


def nested_types(pyarrow: Any) -> dict[str, Any]:
    """Returns Arrow's types of columns that hold several values each."""
    text, number, count = pyarrow.string(), pyarrow.float64(), pyarrow.int64()
    call = {"tool": text, "status": text, "start": number, "seconds": number, "bytes": count}
    message = {"role": text, "content": text}
    return {
        "ids": pyarrow.list_(pyarrow.int32()),
        "numbers": pyarrow.list_(number),
        "texts": pyarrow.list_(text),
        "calls": pyarrow.list_(pyarrow.struct(list(call.items()))),
        "messages": pyarrow.list_(pyarrow.struct(list(message.items()))),
    }
