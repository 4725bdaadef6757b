"""`openrlhf store RUN`: what became of the rows that a run has recorded, by policy; and all of them as one table.

A row is an action with its ids, scores and advantages, and whether it was trained on. Records are read one by one and written in
portions, so a long run needs no more memory than a short one; a run that goes on is read as far as it has got.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_plugins.commands.tables import print_table
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import Record, json_lines
from marl_plugins.core.options import step_range
from marl_plugins.core.redaction import encodable
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.core.trajectory_record import from_record
from marl_plugins.hosts.upstream_cli import Parser

FILE = "trajectories.jsonl"
PORTION = 1000
"""Rows that are written at a time."""
COLUMNS = {
    **{"step": "int64", "task": "string", "sample": "int64", "action": "string"},
    **{"role": "string", "policy": "string", "version": "int64", "turn": "int64"},
    **{"trained": "bool", "left_out": "string", "finish": "string"},
    **dict.fromkeys(("outcome", "score", "reward", "return", "advantage"), "double"),
    **{"context_ids": "ids", "ids": "ids", "logprobs": "numbers", "advantages": "numbers", "text": "string"},
}
"""Of the table, with their types."""


def main(words: Sequence[str]) -> int:
    """Print what became of the rows of a run, and write them as a table where that is asked for.

    Raises:
        ConfigurationError: There are no records, they cannot be read, or the table cannot be written.
    """
    parser = Parser(
        prog="openrlhf store",
        description="What became of the rows that a run has recorded, by policy, while it goes on or afterwards; with --to all of "
        "them as a table with a row per action, for pandas (read_parquet, read_feather) and whatever reads Arrow. See openrlhf "
        "docs metrics.",
        epilog="Example: openrlhf store runs/demo --steps 10:20 --to rows.parquet",
    )
    parser.add_argument("source", type=Path, metavar="RUN", help=f"a run's output folder, or a file such as its {FILE}")
    parser.add_argument(
        "--steps", type=step_range, default=(0, None), metavar="A:B", help="steps A to B only, both included"
    )
    parser.add_argument("--to", type=Path, metavar="FILE", help="write the table: FILE.parquet or FILE.arrow")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(list(words))
    file = options.source / FILE if options.source.is_dir() else options.source
    accounts: dict[str, Account] = {}
    rows = counted(rows_of(file, options.steps), accounts)
    if options.to:
        write(rows, options.to)
    else:
        for _ in rows:
            pass
    if not accounts:
        raise ConfigurationError(f"{file}: holds no actions of these steps")
    if options.json:
        print(json.dumps({policy: account.shown() for policy, account in sorted(accounts.items())}, indent=2))
    else:
        print_table("", Account.HEADER, [[policy, *account.cells()] for policy, account in sorted(accounts.items())])
    return 0


@dataclass
class Account:
    """The rows of one policy."""

    HEADER = ("policy", "versions", "rows", "trained", "left out", "tokens shown", "sampled")

    versions: set[int] = field(default_factory=set)
    trained: int = 0
    left_out: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, row: dict[str, Any]) -> None:
        self.versions.add(row["version"])
        self.trained += row["trained"]
        self.left_out.update([] if row["trained"] else [row["left_out"]])
        self.tokens.update(shown=len(row["context_ids"]), sampled=len(row["ids"]))

    def shown(self) -> dict[str, Any]:
        rows = self.trained + self.left_out.total()
        versions = [min(self.versions), max(self.versions)]
        return {
            **{"versions": versions, "rows": rows, "trained": self.trained, "left_out": dict(self.left_out.most_common())},
            **{"tokens_shown": self.tokens["shown"], "tokens_sampled": self.tokens["sampled"]},
        }

    def cells(self) -> list[str]:
        shown = self.shown()
        first, last = shown["versions"]
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in shown["left_out"].items())
        numbers = (f"{shown[name]:,}" for name in ("rows", "trained"))
        tokens = (f"{shown[name]:,}" for name in ("tokens_shown", "tokens_sampled"))
        return [f"{first}" if first == last else f"{first} to {last}", *numbers, reasons, *tokens]


def rows_of(file: Path, steps: tuple[int, int | None] = (0, None)) -> Iterator[dict[str, Any]]:
    """The rows of recorded trajectories, each by `COLUMNS`.

    Args:
        steps: The first and the last step; None for no last one.

    Raises:
        ConfigurationError: The file is missing, or a line is no trajectory.
    """
    first, last = steps
    try:
        for record in json_lines(file):
            if first <= record.step and (last is None or record.step <= last):
                trajectory = _trajectory(file, record)
                yield from (row_of(trajectory, action) for action in trajectory.actions)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}; expected a run's output folder, or its records") from None


def _trajectory(file: Path, record: Record) -> Trajectory:
    try:
        return from_record(record.value)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{file}:{record.number}: is not a record of a trajectory: {type(error).__name__}: {error}"
        ) from None


def row_of(trajectory: Trajectory, action: Action) -> dict[str, Any]:
    """An action as a row of the table; an evaluation's were never meant to be trained on, and say so."""
    left_out = action.left_out or (None if action.advantage is not None else "not trained")
    values = (
        *(trajectory.step, encodable(trajectory.task.id), trajectory.sample, action.path),
        *(action.role, action.policy, action.generation.version, action.turn),
        *(left_out is None, left_out, action.generation.finish),
        *(trajectory.outcome_of(action.role), action.score, action.reward, action.returns, action.advantage),
        *(action.context_ids, action.generation.ids, action.generation.logprobs, action.advantages),
        encodable(action.text),
    )
    return dict(zip(COLUMNS, values, strict=True))


def counted(rows: Iterable[dict[str, Any]], accounts: dict[str, Account]) -> Iterator[dict[str, Any]]:
    """The rows, each of them in its policy's account."""
    for row in rows:
        accounts.setdefault(row["policy"], Account()).add(row)
        yield row


def write(rows: Iterator[dict[str, Any]], path: Path) -> None:
    """Write rows as a table; the file is there when all of it is.

    Raises:
        ConfigurationError: It cannot be written, or what writes it is not installed.
    """
    if path.suffix not in (".parquet", ".arrow"):
        raise ConfigurationError(f"--to {path}: expected a name that ends in .parquet or .arrow")
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ConfigurationError("--to: pyarrow is not installed: pip install 'openrlhf-marl[tables]'") from None
    types = {"ids": pyarrow.list_(pyarrow.int32()), "numbers": pyarrow.list_(pyarrow.float64())}
    schema = pyarrow.schema([(name, types.get(kind) or kind) for name, kind in COLUMNS.items()])
    part = path.with_name(f"{path.name}.part")
    open_file = pyarrow.parquet.ParquetWriter if path.suffix == ".parquet" else pyarrow.ipc.new_file
    try:
        with open_file(str(part), schema) as writer:
            while portion := list(itertools.islice(rows, PORTION)):
                writer.write_table(pyarrow.Table.from_pylist(portion, schema))
        os.replace(part, path)
    except OSError as error:
        raise ConfigurationError(f"--to {path}: cannot be written: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink()
