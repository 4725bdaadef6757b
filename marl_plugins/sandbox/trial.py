"""Tries whether programs can be run on this machine: lines of `openrlhf doctor`."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.findings import Finding, error_if, ok
from marl_plugins.sandbox.checks import describe_sandbox
from marl_plugins.sandbox.opening import open_sandbox
from marl_plugins.sandbox.program import Limits, Program, ProgramResult
from marl_plugins.sandbox.section import SandboxConfig


def try_sandbox(config: SandboxConfig, limits: Limits, packages: bool, used: bool) -> list[Finding]:
    """Returns the sandbox's level, or service, and what came of three programs: a correct one, an
    endless one, one that needs too much memory.

    Args:
        packages: Whether programs may import installed packages.
        used: Whether the run runs programs.
    """
    sources = {
        "print(6 * 7)": limits,
        "while True: pass": replace(limits, seconds=1.0),
        f"print(len(bytearray({2 * limits.memory_mb * 2**20})))": limits,
    }

    async def programs() -> list[ProgramResult]:
        async with open_sandbox(config, packages=packages) as sandbox:
            return [
                await sandbox.run(Program(source, limits=own, merged=True))
                for source, own in sources.items()
            ]

    started = time.monotonic()
    try:
        where = describe_sandbox(config)
        correct, endless, hungry = asyncio.run(programs())
    except (ConfigurationError, InfrastructureFailure, OSError) as failure:
        return [error_if(used, "sandbox", str(failure), "openrlhf docs sandbox")]
    seconds, problems = time.monotonic() - started, []
    if correct.status != "finished" or correct.stdout.strip() != "42":
        problems.append(f"print(6 * 7) gave {said(correct)!r}")
    if endless.status != "time":
        problems.append("an endless program was not stopped")
    if hungry.status == "finished" or "MemoryError" not in hungry.stdout:
        problems.append(f"a program took more than its {limits.memory_mb} MB: {said(hungry)!r}")
    tool = ok("python tool", f"runs programs, stops those over its limits ({seconds:.1f} s)")
    if problems:
        fix = "raise the recipe's tools.python.memory_mb or seconds; see ulimit -a"
        tool = error_if(used, "python tool", "; ".join(problems), fix)
    return [ok("sandbox", f"where programs run: {where}"), tool]


def said(completed: ProgramResult) -> str:
    """Returns the end of what a program printed, and why it was stopped."""
    return "\n".join(filter(None, [completed.stdout.rstrip("\n"), completed.reason]))[-200:]
