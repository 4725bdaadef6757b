"""The `python` tool: runs a role's program in a process of its own.

Each call gets a fresh empty folder, a clean environment, its own process group, limits on wall time, CPU time, memory and
file size, and a cap on the output, whose head and tail are kept. This bounds mistakes; it does not contain an attacker:
the program runs as the user of the run, with the file system and the network open.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from math import ceil
from pathlib import Path

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.recipe import PythonToolConfig
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.core.workflow import Tool, ToolCall

FENCE = re.compile(r"```(?:python|py)\s*\n(.*?)```", re.DOTALL)
"""A program is a fenced block marked as Python."""

CHILD = Path(__file__).with_name("_child.py")
FILES = 50
"""Maximum number of names kept of the files that a program has left."""
GRACE = 1.0
"""Seconds between the deadline and giving up on reading a killed program's pipes."""


def find_programs(text: str) -> list[str]:
    """All fenced Python programs in an answer."""
    return FENCE.findall(text)


def python_tool(config: PythonToolConfig) -> Tool:
    """The tool, with its limits; calls of all trajectories share one limit on how many run at once."""
    return Tool("python", runner(config), find_programs)


def runner(config: PythonToolConfig) -> Callable[[ToolCall], Awaitable[ToolResult]]:
    """What the tool calls: a program with the given limits."""
    slots = asyncio.Semaphore(config.concurrency or os.cpu_count() or 1)

    async def run(call: ToolCall) -> ToolResult:
        async with slots:
            return await run_program(call.text, config)

    return run


async def run_program(program: str, config: PythonToolConfig) -> ToolResult:
    """Run one program; what it printed, or what stopped it.

    Raises:
        InfrastructureFailure: No process could be started; no program is to blame for that.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="marl-python-", ignore_cleanup_errors=True) as folder:
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *(("-I",) if config.packages else ("-I", "-S")),
                str(CHILD),
                str(config.memory_mb * 2**20),
                str(ceil(config.seconds) + 1),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                cwd=folder,
                env={"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        except OSError as error:
            raise InfrastructureFailure("tool", f"the python tool cannot start a process: {error}") from error
        output = HeadAndTail(config.output_chars)
        reading = asyncio.create_task(_drain(process, program, output))
        try:
            async with asyncio.timeout(config.seconds):
                await asyncio.shield(reading)
                await process.wait()
        except TimeoutError:
            pass  # also when it has ended, and a child of it keeps the pipe open
        finally:
            code = process.returncode
            with contextlib.suppress(ProcessLookupError):  # and whatever the program started
                os.killpg(process.pid, signal.SIGKILL)
        try:
            await asyncio.wait_for(reading, GRACE)
        except TimeoutError:  # a child in a session of its own still holds the pipe
            reading.cancel()
        await process.wait()
        process._transport.close()  # type: ignore[attr-defined]  # else the pipe lives until garbage collection
        files = tuple(sorted(os.listdir(folder))[:FILES])
    seconds = time.monotonic() - started
    text = output.text()
    if code is None:
        return ToolResult("python", program, f"{text}\nstopped after {config.seconds:g} s".strip(), False, seconds, files)
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        return ToolResult("python", program, f"{text}\nkilled by {name}".strip(), False, seconds, files)
    return ToolResult("python", program, text, code == 0, seconds, files)


async def _drain(process: asyncio.subprocess.Process, program: str, output: HeadAndTail) -> None:
    """Write the program and read its output at the same time; what is over the cap is read and discarded."""
    assert process.stdin and process.stdout

    async def write() -> None:
        assert process.stdin
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died before reading
            process.stdin.write(program.encode(errors="replace"))
            await process.stdin.drain()
        process.stdin.close()

    writing = asyncio.create_task(write())
    try:
        while chunk := await process.stdout.read(65536):
            output.add(chunk)
        await writing
    finally:
        writing.cancel()


class HeadAndTail:
    """Keeps the first and the last part of a stream of bytes: tracebacks end at the tail."""

    def __init__(self, limit: int):
        self.limit = limit
        self.head = b""
        self.tail = b""
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        half = self.limit // 2
        room = half - len(self.head)
        self.head += chunk[:room]
        self.tail = (self.tail + chunk[max(room, 0) :])[-(self.limit - half) :]

    def text(self) -> str:
        left_out = self.total - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        return (self.head + middle + self.tail).decode(errors="replace").rstrip("\n")
