"""The sql tool beside SQLite itself, and what hostile queries cost: `python -m benchmarks.sql`

On store 0 of recipes/ecommerce: a look-up and a month's sales by category, through the tool and by
sqlite3 on an open connection in turn, with equal answers; 200 look-ups at once, with the longest
time for which the event loop did nothing else; then the CPU time of every query of
tests/hostile_queries.py. About half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import sqlite3
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hostile_programs import Stalls
from hostile_queries import REFUSED, SLOW_STEPS, STOPPED

from marl_plugins.builtin.tools.sql.queries import query_database, sql_tool
from marl_plugins.builtin.tools.sql.section import SqlToolConfig
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.tools import ToolCall

AT_ONCE = 200
CONFIG = SqlToolConfig(database="", today="2025-12-31")
QUERIES: dict[str, tuple[str, list[Any]]] = {
    "a look-up": ("SELECT status FROM orders WHERE id = ?", [4711]),
    "a month by category": (
        "SELECT c.name, sum(l.quantity * l.price) FROM order_lines l JOIN orders o ON o.id = "
        "l.order_id JOIN products p "
        "ON p.id = l.product JOIN categories c ON c.id = p.category WHERE o.day LIKE ? GROUP BY 1 "
        "ORDER BY 2 DESC",
        ["2025-03-%"],
    ),
    "strftime on all orders": ("SELECT strftime('%m', day), count(*) FROM orders GROUP BY 1", []),
}


def shown(seconds: list[float]) -> str:
    """Median and range in milliseconds."""
    return (
        f"{statistics.median(seconds) * 1e3:.2f} ms "
        f"({min(seconds) * 1e3:.2f}-{max(seconds) * 1e3:.2f})"
    )


async def compare(database: Path, rounds: int) -> None:
    tool, plain = sql_tool(CONFIG, database), sqlite3.connect(database)
    for name, (query, values) in QUERIES.items():
        text = f"{query}\n{values}".replace("'2025", '"2025').replace("%']", '%"]')
        beside: list[float] = []
        through: list[float] = []
        for _ in range(rounds):
            started = time.perf_counter()
            expected = plain.execute(query, values).fetchall()
            between = time.perf_counter()
            result = await tool.run(ToolCall(text, "t", 0, 1))
            through.append(time.perf_counter() - between)
            beside.append(between - started)
            assert result.ok and result.output.splitlines()[1:] == [
                ",".join(map(str, row)) for row in expected
            ]
        more = statistics.median(through) - statistics.median(beside)
        print(
            f"{name}: sqlite3 {shown(beside)}, tool {shown(through)}: {more * 1e3:.2f} ms more",
            flush=True,
        )
    plain.close()


async def crowd(database: Path) -> None:
    tool = sql_tool(CONFIG, database)
    async with Stalls() as stalls:
        await asyncio.sleep(0.05)
        started = time.perf_counter()
        calls = [
            tool.run(ToolCall(f"SELECT id FROM orders WHERE id = ?\n[{4000 + n}]", "t", n, 1))
            for n in range(AT_ONCE)
        ]
        results = await asyncio.gather(*calls)
        seconds = time.perf_counter() - started
        right = sum(result.output == f"id\n{4000 + n}" for n, result in enumerate(results))
        print(
            f"{AT_ONCE} at once: {seconds:.2f} s, {right} right, event loop stalled at most "
            f"{stalls.longest * 1e3:.0f} ms"
        )
        stalls.longest = 0.0
        endless = [tool.run(ToolCall(STOPPED["cross join"], "t", n, 1)) for n in range(8)]
        results = await asyncio.gather(*endless)
        print(
            f"8 without end at once: event loop stalled at most {stalls.longest * 1e3:.0f} ms",
            flush=True,
        )
        assert not any(result.ok for result in results)


def attack(database: Path) -> None:
    before = hashlib.sha256(database.read_bytes()).hexdigest()
    for kind, queries in (
        ("refused", REFUSED),
        ("stopped", STOPPED),
        ("with long texts", SLOW_STEPS),
    ):
        times = {}
        for name, query in queries.items():
            started = time.thread_time()
            answer = query_database(database, query, CONFIG)
            times[name] = time.thread_time() - started
            assert answer.problem
        slowest = max(times, key=lambda name: times[name])
        print(
            f"{len(queries)} {kind}: {shown(list(times.values()))}, slowest {slowest!r}", flush=True
        )
    assert hashlib.sha256(database.read_bytes()).hexdigest() == before


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=301, help="of each query that is compared")
    options = parser.parse_args()
    store = load_file(recipes_root() / "ecommerce" / "store.py")
    database = store.database(0)
    print(f"sqlite {sqlite3.sqlite_version}, {database.stat().st_size / 1e6:.1f} MB")
    asyncio.run(compare(database, options.rounds))
    asyncio.run(crowd(database))
    attack(database)


if __name__ == "__main__":
    main()
