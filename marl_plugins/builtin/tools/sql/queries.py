"""The `sql` tool: answers a role's queries from an SQLite file that nothing can change.

    ```sql
    SELECT status, day FROM orders WHERE id = ?
    [4711]
    ```

One SELECT, and in the last line the JSON list of its parameters, if it has any. Every call has a
connection of its own, in a thread. What an agent writes can read the tables that it is given and
nothing else: it has to compile where these alone are. It ends after a number of steps of SQLite's
virtual machine, so that a run repeats. A query that is wrong is an answer with SQLite's words; a
database that is gone is infrastructure.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_plugins.builtin.tools.sql.databases import columns_of, open_read_only, tables_of
from marl_plugins.builtin.tools.sql.section import SqlToolConfig
from marl_plugins.core.failures import InfrastructureFailure, nearest
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import ToolResult

FENCE = re.compile(r"```sql[^\S\n]*\n(.*?)```", re.DOTALL)
"""A query is a fenced block marked as SQL, with its line of parameters."""
ALLOWED = {
    sqlite3.SQLITE_SELECT,
    sqlite3.SQLITE_READ,
    sqlite3.SQLITE_FUNCTION,
    sqlite3.SQLITE_RECURSIVE,
}
DATES = ("date", "time", "datetime", "julianday", "strftime", "unixepoch")
NAMES = """
    abs acos asin atan atan2 avg ceil ceiling char coalesce concat concat_ws cos count cume_dist
    degrees dense_rank exp
    first_value floor glob group_concat hex ifnull iif instr lag last_value lead length like ln log
    log10 log2 lower ltrim max min
    mod nth_value ntile nullif percent_rank pi pow power quote radians rank replace round row_number
    rtrim sign sin sqrt
    string_agg substr substring sum tan total trim trunc typeof unicode upper
    -> ->> json json_array json_array_length json_extract json_group_array json_group_object
    json_object json_quote json_type
    json_valid
"""
FUNCTIONS = frozenset([*NAMES.split(), *DATES])
"""All others are refused: those that read or write files, that differ from call to call (`random`,
`current_date`), and that take long in a single step (`printf`, `format`, `zeroblob`)."""
PATTERNS = frozenset(["glob", "instr", "json", "like", "ltrim", "replace", "rtrim", "trim"])
"""Those that take longest on long texts: up to the product of the lengths of two."""
STEPS_WITH_PATTERNS = 4
"""What each step of a query with one of them counts."""
LIMITS = {
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 4_000,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 8,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 50,
    sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER: 100,
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_TRIGGER_DEPTH: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}
PERIOD_STEPS = 200
"""Steps between two looks at the limits."""
STEPS_OF_A_DATE = 100
"""What a call of a date function counts, because it is answered in Python."""
CPU_SECONDS = 0.4
"""Of one query: where single steps take very long, on patterns made for that, their number does not
end it in time."""
MAX_TABLE_COPIES = 1_000
"""Copies that SQLite makes of the tables in WITH before the first step is counted."""
BROKEN = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_PROTOCOL,
}
"""Errors that no query is to blame for."""


def sql_tool(
    config: SqlToolConfig, database: Path | Callable[[ToolCall], Path], name: str = "sql"
) -> Tool:
    """Returns the tool.

    Args:
        database: The file, or which file a call is about.
    """
    threads = ThreadPoolExecutor(os.cpu_count(), thread_name_prefix=name)

    def answered(call: ToolCall) -> ToolResult:
        started = time.monotonic()
        file = database(call) if callable(database) else database
        answer = query_database(file, call.text, config)
        return ToolResult(
            name, call.text, answer.text(config), not answer.problem, time.monotonic() - started
        )

    async def run(call: ToolCall) -> ToolResult:
        return await asyncio.get_running_loop().run_in_executor(threads, answered, call)

    return Tool(name, run, FENCE.findall, calls_per_answer=config.calls_per_answer)


@dataclass(frozen=True)
class QueryResult:
    """The answer to a query.

    Args:
        rows: At most `SqlToolConfig.rows`.
        more: Whether there are more.
        problem: What is wrong with the query; empty where it was answered.
        stopped: `steps` or `seconds` where a limit has ended it.
    """

    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()
    more: bool = False
    problem: str = ""
    stopped: str = ""

    def text(self, config: SqlToolConfig) -> str:
        """Returns the answer as CSV with a line of names, or the problem."""
        if self.problem:
            return self.problem[: config.output_chars]
        lines = [_csv(self.columns), *map(_csv, self.rows)]
        shown = "\n".join(lines) if self.rows else f"{lines[0]}\n(no rows)"
        if len(shown) > config.output_chars:
            return (
                f"{shown[: config.output_chars]}\n(more: at most {config.output_chars} "
                "characters are shown)"
            )
        return f"{shown}\n(more: at most {config.rows} rows are shown)" if self.more else shown


def _csv(values: Iterable[Any]) -> str:
    line = io.StringIO()
    shown = [
        "NULL" if v is None else f"x'{v.hex()}'" if isinstance(v, bytes) else v for v in values
    ]
    csv.writer(line, lineterminator="").writerow(shown)
    return line.getvalue()


def query_database(database: Path, text: str, config: SqlToolConfig) -> QueryResult:
    """Answers one call, in this thread.

    Raises:
        InfrastructureFailure: The database cannot be read; no query is to blame for that.
    """
    try:
        connection = open_read_only(database)
        try:
            tables = {name.lower(): name for name in tables_of(connection)}
            if not tables:
                raise InfrastructureFailure(
                    "tool", f"the database has no tables any more: {database}"
                )
            return _answer(connection, *read_call(text), config, tables)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise InfrastructureFailure(
            "tool", f"the database cannot be read: {database}: {error}"
        ) from error


def read_call(text: str) -> tuple[str, list[Any]]:
    """Returns the query of a call, and its parameters."""
    query, _, last = text.strip().rpartition("\n")
    if last.lstrip().startswith("["):
        try:
            parameters = json.loads(last)
        except (ValueError, RecursionError):  # `[name]` is a name too
            return text, []
        if isinstance(parameters, list):
            return query, parameters
    return text, []


def _answer(
    connection: sqlite3.Connection,
    query: str,
    parameters: list[Any],
    config: SqlToolConfig,
    tables: dict[str, str],
) -> QueryResult:
    """Raises `sqlite3.Error` where the database is to blame."""
    if expansions(query) > MAX_TABLE_COPIES:
        return QueryResult(
            problem="the tables in WITH use each other too often; write a shorter query"
        )
    everything = {*tables, "sqlite_master", "sqlite_schema"}
    readable = {name.lower() for name in config.tables} or everything
    own = sorted(tables[name] for name in readable & tables.keys())
    meter = Meter(config)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, config.value_bytes)
    for limit, value in LIMITS.items():
        connection.setlimit(limit, value)
    for name in DATES:
        connection.create_function(name, -1, meter.date(name), deterministic=True)

    def authorize(action: int, one: str | None, two: str | None, *_: str | None) -> int:
        if action == sqlite3.SQLITE_READ and (name := str(one).lower()) not in readable:
            # a table in WITH of which no column is read is asked for, too
            return sqlite3.SQLITE_DENY if two or name in everything else sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION:
            name = str(two).lower()
            meter.step = STEPS_WITH_PATTERNS if name in PATTERNS else meter.step
            if name not in FUNCTIONS:
                return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY

    connection.set_progress_handler(meter.spent, PERIOD_STEPS)
    try:
        if config.tables:
            with closing(without_rows(connection, own)) as empty:
                empty.set_authorizer(authorize)
                empty.execute(f"EXPLAIN {query}", parameters)
        readable = everything  # here, of which views read more than they are
        connection.set_authorizer(authorize)
        cursor = connection.execute(query, parameters)
        if cursor.description is None:
            return QueryResult(problem="there is no query; write one SELECT")
        rows = cursor.fetchmany(config.rows + 1)
        return QueryResult(
            [name for name, *_ in cursor.description], rows[: config.rows], len(rows) > config.rows
        )
    except (sqlite3.Error, sqlite3.Warning, OverflowError, ValueError) as error:
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in BROKEN:
            raise
        connection.set_progress_handler(None, 0)
        connection.set_authorizer(None)
        problem = meter.problem or f"{error}{_hint(str(error), connection, own)}"
        return QueryResult(problem=problem, stopped=meter.stopped)


def without_rows(connection: sqlite3.Connection, tables: Iterable[str]) -> sqlite3.Connection:
    """Returns a database that has tables alone, of a database's tables and views. What a query
    names there is the same as here; SQLite does not tell a view from a table in WITH."""
    empty = sqlite3.connect(":memory:")
    for known in tables:
        names = [known, *columns_of(connection, known)]
        table, *columns = ['"{}"'.format(name.replace('"', '""')) for name in names]
        empty.execute(f"CREATE TABLE {table} ({', '.join(columns)})")
    return empty


def _hint(error: str, connection: sqlite3.Connection, own: Sequence[str]) -> str:
    """Returns what helps to correct a query: the name that an unknown table or column is closest
    to."""
    if "authoriz" in error and "function" not in error:
        return f"; a query can only read {', '.join(own)}"
    if not (unknown := re.match(r"no such (table|column): (?:\w+\.)?(.+)", error)):
        return ""
    kind, name = unknown.groups()
    return nearest(
        name,
        own if kind == "table" else {c for table in own for c in columns_of(connection, table)},
    )


@dataclass
class Meter:
    """Measures what one query has used; and has the date functions, for which today is the
    database's own day."""

    config: SqlToolConfig
    step: int = 1
    steps: int = 0
    stopped: str = ""
    problem: str = ""
    plain: sqlite3.Connection = field(default_factory=lambda: sqlite3.connect(":memory:"))
    started: float = field(default_factory=time.thread_time)

    def spent(self) -> bool:
        """Returns whether the query has to end; called every `PERIOD_STEPS` steps."""
        self.steps += PERIOD_STEPS * self.step
        if self.steps > self.config.steps:
            self.stopped = "steps"
            self.problem = (
                f"stopped after {self.config.steps:,} steps; join on keys, or read fewer rows"
            )
        elif time.thread_time() - self.started > CPU_SECONDS:
            self.stopped = "seconds"
            self.problem = (
                f"stopped after {CPU_SECONDS:g} s; build no long texts, and write shorter patterns"
            )
        return bool(self.stopped)

    def date(self, name: str) -> Callable[..., Any]:
        """Returns one of SQLite's date functions, answered by SQLite itself, with `now`
        replaced."""

        def function(*arguments: Any) -> Any:
            self.steps += STEPS_OF_A_DATE
            values = arguments if len(arguments) > (name == "strftime") else (*arguments, "now")
            words = [value.lower() if isinstance(value, str) else value for value in values]
            if any(
                isinstance(word, bytes) or word in ("localtime", "utc", "subsec", "subsecond")
                for word in words
            ):
                self.problem = f"{name}() is without time zones, parts of seconds and blobs here"
            elif "now" in words and self.config.today is None:
                self.problem = f"{name}() has no 'now' here; give the day that you mean"
            if self.problem:
                raise ValueError(self.problem)
            today, query = str(self.config.today), f"SELECT {name}({', '.join('?' * len(values))})"
            given = [
                today if word == "now" else value for word, value in zip(words, values, strict=True)
            ]
            return self.plain.execute(query, given).fetchone()[0]

        return function


TOKEN = re.compile(
    r"""(?P<skip>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))|'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^]]*]|[\w$\x80-\U0010ffff]+|.""",
    re.DOTALL,
)
DEFINED = re.compile(r"(\S+) (?:\( [^()]* \) )?as (?:not )?(?:materialized )?\(")
"""Finds a name that WITH defines, in words with a space between."""


def expansions(query: str) -> float:
    """Counts how often the tables in WITH are copied into each other, at most: SQLite does so
    before it begins to count steps.

    Sixteen tables that each name the one before twice are 65,536 copies, a second; twenty-four are
    some minutes.
    """
    tokens = [token[0] for token in TOKEN.finditer(query.lower()) if not token["skip"]]
    words = [re.sub(r"(?s)(?<=.)\W|\W(?=.)", "", token) for token in tokens]  # without quotes
    uses, defined = Counter(words), Counter(DEFINED.findall(" ".join(words)))
    copies = 1.0
    for name, times in defined.items():
        copies *= min(max(1.0, uses[name] / times - 1) ** times, 2.0 * MAX_TABLE_COPIES)
    return copies
