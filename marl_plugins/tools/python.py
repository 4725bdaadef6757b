"""The `python` tool: runs a role's programs in the sandbox, and makes an answer of whatever they do.

Each call gets a fresh empty folder, or works in the trajectory's own (`workspace: true`). How well a program is isolated is the
sandbox's matter (marl_plugins/sandbox/levels.py).
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from marl_plugins.core.recipe import PythonToolConfig, SandboxConfig
from marl_plugins.core.tools import Function, Tool, ToolCall
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.sandbox import Limits, OnDemand, Program, Sandbox

FENCE = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL)
"""A program is a fenced block marked as Python."""
FUNCTION = Function(
    "python",
    "Runs a Python program and returns what it prints.",
    {
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The program; only what it prints is returned."}},
        "required": ["code"],
    },
    text="code",
)
"""For roles with `calls:`."""


def find_programs(text: str) -> list[str]:
    """All fenced Python programs in an answer."""
    return FENCE.findall(text)


def python_tool(config: PythonToolConfig, sandbox: OnDemand | None = None) -> Tool:
    """The tool, with its limits.

    Args:
        sandbox: Where programs run; default: a sandbox of its own.
    """
    return Tool(
        "python",
        runner(config, sandbox),
        find_programs,
        calls_per_answer=config.calls_per_answer,
        seconds_per_trajectory=config.seconds_per_trajectory,
        in_workspace=config.workspace,
        functions=(FUNCTION,),
    )


def runner(config: PythonToolConfig, sandbox: OnDemand | None = None) -> Callable[[ToolCall], Awaitable[ToolResult]]:
    """What the tool calls: a program with the given limits; calls of all trajectories share one limit on how many run at once."""
    opened = sandbox or sandbox_of(config, SandboxConfig())

    async def run(call: ToolCall) -> ToolResult:
        return await run_program(call.text, config, opened.sandbox, call.workspace)

    return run


def sandbox_of(config: PythonToolConfig, sandbox: SandboxConfig, workspaces: Callable[[], Path] | None = None) -> OnDemand:
    """The sandbox of the tool's programs.

    Args:
        workspaces: Gives the folder in which all workspaces lie.
    """
    return OnDemand(sandbox, packages=config.packages, concurrency=config.concurrency, workspaces=workspaces)


async def run_program(
    program: str,
    config: PythonToolConfig,
    sandbox: Sandbox,
    workspace: Path | None = None,
    files: Mapping[str, bytes] = MappingProxyType({}),
) -> ToolResult:
    """Run one program, in a fresh folder unless there is a workspace; what it printed, and what stopped it.

    Args:
        files: Written into the folder first, by their path in it.

    Raises:
        InfrastructureFailure: It could not be run; no program is to blame for that.
    """
    limits = Limits(
        seconds=config.seconds,
        memory_mb=config.memory_mb,
        file_mb=config.memory_mb,
        disk_mb=config.disk_mb,
        output_chars=config.output_chars,
    )
    completed = await sandbox.run(Program(program, files=files, limits=limits, merged=True), workspace)
    output = "\n".join(filter(None, [completed.stdout.rstrip("\n"), completed.reason]))
    return ToolResult("python", program, output, completed.status == "finished", completed.seconds, completed.names)
