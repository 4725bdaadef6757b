"""Rows per second through the store: `python -m benchmarks.store [--trajectories 100000] [--runs 5]`

Every row is put in four columns, in the order in which trajectories happen to end, claimed by 16 or by whole tasks, and committed.
Beside it, in the same run: lists that are sorted by task at the end of a rollout, which is what a step does today, and
SQLite in memory. All must give the same rows in the same order.
"""

from __future__ import annotations

import argparse
import random
import sqlite3
import statistics
import time
from collections.abc import Callable
from typing import Any

from marl_plugins.core.store import Key, Table

COLUMNS = ("ids", "logprobs", "parents", "reward")
SAMPLES = 4
LIMIT = 16

Rows = list[tuple[Key, tuple[Any, ...]]]


def drawn(trajectories: int) -> Rows:
    """One row per trajectory, in a random order of arrival."""
    draw = random.Random(0)
    rows: Rows = [
        (Key(n // SAMPLES, n % SAMPLES, f"a.{n:x}"), ((n, n + 1), (-0.5, -0.25), (), n / 7)) for n in range(trajectories)
    ]
    draw.shuffle(rows)
    return rows


def stored(rows: Rows, whole: bool) -> Rows:
    """Each column is put by itself, as if several stages of a step had made them."""
    table, found = Table("p", COLUMNS), []
    for key, values in rows:
        for column, value in zip(COLUMNS, values, strict=True):
            table.put(key, 0, **{column: value})
    if whole:
        for place in {key.place for key, _ in rows}:
            table.close(place, 0)
    while claimed := table.claim("trainer", LIMIT, 0, whole):
        found += [(row.key, tuple(row.values[column] for column in COLUMNS)) for row in claimed]
    assert table.commit(1) == len(rows) and not len(table), "a row was lost"
    return found


def listed(rows: Rows) -> Rows:
    return sorted(rows)


def in_sqlite(rows: Rows) -> Rows:
    """The columns of a row at once; the values stay outside, as its columns hold no tuples."""
    values, found = dict(rows), []
    with sqlite3.connect(":memory:") as db:
        db.execute("create table r (place int, sample int, path text, claimed int, primary key (place, sample, path))")
        for key, _ in rows:
            db.execute("insert into r values (?, ?, ?, 0)", key)
        pick = "select place, sample, path from r where not claimed order by place, sample, path limit ?"
        while claimed := db.execute(pick, (LIMIT,)).fetchall():
            db.executemany("delete from r where place = ? and sample = ? and path = ?", claimed)
            found += [(Key(*key), values[Key(*key)]) for key in claimed]
    return found


WAYS: dict[str, Callable[[Rows], Rows]] = {
    "store, claimed by 16": lambda rows: stored(rows, False),
    "store, whole tasks": lambda rows: stored(rows, True),
    "SQLite in memory": in_sqlite,
    "lists, sorted": listed,
}


def spread(values: list[float], digits: int = 0) -> str:
    return f"{statistics.median(values):,.{digits}f} ({min(values):,.{digits}f}-{max(values):,.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trajectories", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    rows = drawn(args.trajectories)
    expected = sorted(rows)
    rates: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(args.runs):
        for name, way in WAYS.items():
            started = time.process_time()
            found = way(rows)
            rates[name].append(len(rows) / (time.process_time() - started))
            assert found == expected, f"{name} gave other rows"
    print(f"{len(rows)} rows, {args.runs} runs, per second of CPU\n| way | rows/s | of the first |\n|---|---|---|")
    first = rates[next(iter(WAYS))]
    for name, mine in rates.items():
        ratios = [a / b for a, b in zip(mine, first, strict=True)]
        print(f"| {name} | {spread(mine)} | {spread(ratios, 2)} |")


if __name__ == "__main__":
    main()
