"""SQLite files, opened so that nothing can change them, and what is wrong with one that agents are
to query."""

from __future__ import annotations

import contextlib
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
    """Returns the names of all columns, those that are computed too."""
    rows = connection.execute("SELECT name FROM pragma_table_xinfo(?)", (table,))
    return [name for (name,) in rows]


def database_problems(path: Path, tables: Sequence[str]) -> list[Problem]:
    """Returns why agents cannot query a file, each with the fix.

    Args:
        tables: What has to be in it; none: at least one table.
    """
    where = at(key="tools.sql.database", file=path)
    try:
        with contextlib.closing(open_read_only(path)) as connection:
            known = tables_of(connection)
    except sqlite3.Error as error:
        got = f"is not an SQLite database that can be read ({error})"
        return [Problem("sql.database", where, got, fix="give an SQLite file")]
    for log in (Path(f"{path}{end}") for end in LOGS):
        if log.is_file() and log.stat().st_size:
            checkpoint = "PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE"
            got = f"has changes that are only in {log.name}"
            fix = f"write them into the file with `sqlite3 FILE '{checkpoint}'`"
            return [Problem("sql.database", where, got, fix=fix)]
    if not known:
        fix = "give a database with the tables that the agents are to query"
        return [Problem("sql.database", where, "has no table", fix=fix)]
    folded, where = {name.lower() for name in known}, at(key="tools.sql.tables", file=path)
    return [
        Problem("sql.table", where, f"has no table {name!r}", fix=meant(name, known))
        for name in tables
        if name.lower() not in folded
    ]
