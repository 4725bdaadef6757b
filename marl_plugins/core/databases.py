"""SQLite files, opened so that nothing can change them, and what is wrong with one that agents are to query."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.failures import nearest

LOGS = ("-wal", "-journal")
"""Files beside a database that hold changes of it; a file that is opened as immutable is read without them."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """A connection that neither locks nor writes, nor creates a file (`mode=ro`, `immutable=1`: https://sqlite.org/uri.html).

    Raises:
        sqlite3.Error: There is no such file. Whether it is a database shows when it is read.
    """
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    connection = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
    connection.text_factory = lambda text: text.decode(errors="replace")
    return connection


def tables_of(connection: sqlite3.Connection) -> list[str]:
    """Names of the tables and views."""
    found = connection.execute(
        "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite!_%' ESCAPE '!'"
    )
    return [name for (name,) in found]


def columns_of(connection: sqlite3.Connection, table: str) -> list[str]:
    return [name for (name,) in connection.execute("SELECT name FROM pragma_table_info(?)", (table,))]


def database_problems(path: Path, tables: Sequence[str]) -> list[str]:
    """Why agents cannot query a file, each with the fix.

    Args:
        tables: What has to be in it; none: at least one table.
    """
    if not path.is_file():
        return [f"{path}: {'is not a file' if path.exists() else 'no such file'}; give an SQLite file"]
    try:
        connection = open_read_only(path)
        try:
            known = tables_of(connection)
        finally:
            connection.close()
    except sqlite3.Error as error:
        return [f"{path}: is not an SQLite database that can be read ({error}); give an SQLite file"]
    logs = [log for log in (Path(f"{path}{end}") for end in LOGS) if log.is_file() and log.stat().st_size]
    if logs:
        return [
            f"{path}: has changes that are only in {logs[0].name}; write them into the file with "
            "`sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE); PRAGMA journal_mode=DELETE'`"
        ]
    if not known:
        return [f"{path}: has no table; give a database with the tables that the agents are to query"]
    folded = {name.lower() for name in known}
    return [f"{path}: has no table {name!r}{nearest(name, known)}" for name in tables if name.lower() not in folded]
