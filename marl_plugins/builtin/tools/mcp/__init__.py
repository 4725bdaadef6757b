"""Tools of servers that speak the Model Context Protocol (servers.py): each server of the recipe is
one tool.

tools:
  mcp:
    time: {command: [mcp-server-time]}
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.builtin.tools.mcp.section import MCPConfig
from marl_plugins.core.findings import check_extra

if TYPE_CHECKING:
    from marl_plugins.core.findings import Finding
    from marl_plugins.core.problems import Problem
    from marl_plugins.core.run import Run
    from marl_plugins.core.section import Section
    from marl_plugins.core.tools import Tool


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"tools.mcp": MCPConfig}


@hookimpl
def marl_tools(run: Run) -> list[Tool]:
    config = run.section(MCPConfig)
    if config is None or not config.servers:
        return []
    from marl_plugins.builtin.tools.mcp.servers import Servers

    return [server.tool() for server in run.state(Servers).of(config.servers, run.folder)]


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with the servers' settings; what the servers offer shows when a run
    starts."""
    config = run.section(MCPConfig)
    if config is None or not config.servers:
        return []
    from marl_plugins.builtin.tools.mcp.checks import check_mcp

    return check_mcp(config, run.folder)


@hookimpl
def marl_doctor(run: Run | None) -> list[Finding]:
    config = run.section(MCPConfig) if run is not None else None
    return [
        check_extra(
            "mcp", ["mcp"], "servers under `tools: mcp:`", used=bool(config and config.servers)
        )
    ]


@hookimpl
async def marl_start(run: Run) -> None:
    """Tries each server, and learns what it offers."""
    from marl_plugins.builtin.tools.mcp.servers import Servers

    await run.state(Servers).try_all()


@hookimpl
async def marl_stop(run: Run) -> None:
    from marl_plugins.builtin.tools.mcp.servers import Servers

    await run.state(Servers).close()
