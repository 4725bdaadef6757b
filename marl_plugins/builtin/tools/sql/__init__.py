"""The tool `sql`: a role queries an SQLite file that nothing can change (queries.py).

tools:
  sql: {database: shop.db}
"""

from __future__ import annotations

from marl_plugins import hookimpl
from marl_plugins.builtin.tools.sql.section import SqlToolConfig
from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Tool


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"tools.sql": SqlToolConfig}


@hookimpl
def marl_tools(run: Run) -> list[Tool]:
    """Returns the tool, where the recipe has a database for it."""
    config = run.section(SqlToolConfig)
    if config is None:
        return []
    from marl_plugins.builtin.tools.sql.queries import sql_tool

    return [sql_tool(config, run.folder / config.database)]


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with the database."""
    from marl_plugins.builtin.tools.sql.databases import database_problems

    config = run.section(SqlToolConfig)
    if config is None:
        return []
    return database_problems(run.folder / config.database, config.tables)
