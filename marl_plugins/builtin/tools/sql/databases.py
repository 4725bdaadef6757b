"""SQLite files, opened so that nothing can change them, and what is wrong with one that agents are
to query."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.problems import Problem, at, meant

LOGS = ("-wal", "-journal")
"""Files beside a database that hold changes of it; a file that is opened as immutable is read
without them."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """Opens a connection that neither locks nor writes, nor creates a file (`mode=ro`,
    `immutable=1`: https://sqlite.org/uri.html).

    Raises:
        sqlite3.Error: There is no such file. Whether it is a database shows when it is read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Returns the names of the tables and views."""
    rows = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE "
        "'sqlite!_%' ESCAPE '!'"
    )
    return [name for (name,) in rows]


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [
        name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))
    ]


def database_problems(path: Path, tables: Sequence[str]) -> list[Problem]:
    """Returns why agents cannot query a file, each with the fix.

    Args:
        tables: What has to be in it; none: at least one table.
    """
    known: list[str] = []
    if wrong := _unusable(path, known):
        got, fix = wrong
        return [Problem("sql.database", at(key="tools.sql.database", file=path), got, fix=fix)]
    folded, where = {name.lower() for name in known}, at(key="tools.sql.tables", file=path)
    absent = [name for name in tables if name.lower() not in folded]
    return [
        Problem("sql.table", where, f"has no table {name!r}", fix=meant(name, known))
        for name in absent
    ]


def _unusable(path: Path, known: list[str]) -> tuple[str, str] | None:
    """Returns what is wrong with a file, and the fix; otherwise its tables are added to those
    known."""
    if not path.is_file():
        return "is not a file" if path.exists() else "no such file", "give an SQLite file"
    try:
        connection = open_read_only(path)
        try:
            known += tables_of(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        return f"is not an SQLite database that can be read ({error})", "give an SQLite file"
    logs = [
        log
        for log in (Path(f"{path}{end}") for end in LOGS)
        if log.is_file() and log.stat().st_size
    ]
    if logs:
        checkpoint = "sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE'"
        return (
            f"has changes that are only in {logs[0].name}",
            f"write them into the file with `{checkpoint}`",
        )
    return (
        None
        if known
        else ("has no table", "give a database with the tables that the agents are to query")
    )
