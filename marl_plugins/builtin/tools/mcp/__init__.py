"""Tools of servers that speak the Model Context Protocol (servers.py): each server of the recipe is
one tool.

tools:
  mcp:
    time: {command: [mcp-server-time]}
"""

from __future__ import annotations

from marl_plugins import hookimpl
from marl_plugins.builtin.tools.mcp.section import MCPConfig, MCPServerConfig
from marl_plugins.core.findings import Finding, check_extra
from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.core.section import Section
from marl_plugins.core.tools import Tool


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"tools.mcp": MCPConfig}


def servers_of(run: Run | None) -> dict[str, MCPServerConfig]:
    """Returns the recipe's servers, by name."""
    config = run.section(MCPConfig) if run is not None else None
    return config.servers if config else {}


@hookimpl
def marl_tools(run: Run) -> list[Tool]:
    if not (servers := servers_of(run)):
        return []
    from marl_plugins.builtin.tools.mcp.servers import Servers

    return [server.tool() for server in run.state(Servers).of(servers, run.folder)]


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with the servers' settings; what the servers offer shows when a run
    starts."""
    if not (servers := servers_of(run)):
        return []
    from marl_plugins.builtin.tools.mcp.checks import check_mcp

    return check_mcp(servers, run.folder)


@hookimpl
def marl_doctor(run: Run | None) -> list[Finding]:
    used = bool(servers_of(run))
    return [check_extra("mcp", ["mcp"], "servers under `tools: mcp:`", used)]


@hookimpl
async def marl_start(run: Run) -> None:
    """Tries each server, and learns what it offers."""
    from marl_plugins.builtin.tools.mcp.servers import Servers

    await run.state(Servers).try_all()


@hookimpl
async def marl_stop(run: Run) -> None:
    from marl_plugins.builtin.tools.mcp.servers import Servers

    await run.state(Servers).close()
