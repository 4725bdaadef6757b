"""The `python` tool: runs a role's program in processes of its own, and makes an answer of whatever it does.

Each call gets a fresh empty folder, a clean environment, a supervisor (supervisor.py), limits on time, memory, processes and
files, and a cap on the output, whose head and tail are kept. This bounds mistakes; it does not contain an attacker: the program
runs as the user of the run, with the file system and the network open.
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
from dataclasses import dataclass

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.recipe import PythonToolConfig
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.tools import supervisor

FENCE = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL)
"""A program is a fenced block marked as Python."""

SUPERVISE = (
    "import sys; sys.path.insert(0, sys.argv[1]); import supervisor; del sys.path[0], sys.argv[1]; supervisor.main()"
)
"""Imported, because a script would be compiled anew in every call."""
LATE = 5.0
"""Seconds after a program's limit in which its supervisor has to report, and again after it was woken."""
CLEANING = 60.0
"""Seconds for a supervisor to remove what a program has left; after that it is removed here, in a thread."""


def find_programs(text: str) -> list[str]:
    """All fenced Python programs in an answer."""
    return FENCE.findall(text)


def python_tool(config: PythonToolConfig) -> Tool:
    """The tool, with its limits; calls of all trajectories share one limit on how many run at once."""
    return Tool(
        "python",
        runner(config),
        find_programs,
        calls_per_answer=config.calls_per_answer,
        seconds_per_trajectory=config.seconds_per_trajectory,
    )


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
    source = program.encode(errors="replace")
    folder, process = await _start(len(source), config)
    reading = asyncio.create_task(_read(process, source, config.output_chars))
    try:
        await asyncio.wait({reading}, timeout=config.seconds + LATE)
        if not reading.done():
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)  # the program may have stopped its supervisor
            await asyncio.wait({reading}, timeout=LATE)
    finally:
        patience = CLEANING if reading.done() else LATE
        reading.cancel()
        left = await _end(process, folder, patience)
    said = reading.result() if reading.done() and not reading.cancelled() else b""
    report = Report.parse(said)
    if report is None and process.returncode in (1, 2):  # an exception, or no such file
        reason = said.decode(errors="replace").strip()[-500:]
        raise InfrastructureFailure("tool", f"the python tool's supervisor failed: {reason}")
    if report is None:
        report = Report(1, "the program has ended or blocked the process that supervises it", (), "")
    output = "\n".join(filter(None, [report.output, report.stopped or _signal(report.code), left]))
    ok = report.code == 0 and not report.stopped and not left
    return ToolResult("python", program, output, ok, time.monotonic() - started, report.files)


def _signal(code: int) -> str:
    """What ended a program with an exit code, if a signal did."""
    if code >= 0:
        return ""
    return f"killed by {signal.Signals(-code).name if -code in list(signal.Signals) else f'signal {-code}'}"


async def _start(length: int, config: PythonToolConfig) -> tuple[str, asyncio.subprocess.Process]:
    """A folder, and in it a supervisor that waits for a program.

    Raises:
        InfrastructureFailure: There is no room for them.
    """
    limits = (config.seconds, config.memory_mb, config.disk_mb, config.output_chars, length)
    try:
        folder = tempfile.mkdtemp(prefix="marl-python-")
    except OSError as error:
        raise InfrastructureFailure("tool", f"the python tool cannot make a folder: {error}") from error
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *(("-I",) if config.packages else ("-I", "-S")),
            *("-c", SUPERVISE, os.path.dirname(supervisor.__file__), folder, *map(str, limits)),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    except OSError as error:
        os.rmdir(folder)
        raise InfrastructureFailure("tool", f"the python tool cannot start a process: {error}") from error
    except asyncio.CancelledError:
        os.rmdir(folder)
        raise
    return folder, process


async def _read(process: asyncio.subprocess.Process, source: bytes, output_chars: int) -> bytes:
    """Give the supervisor its program; its report, or nothing where that is longer than one can be."""
    assert process.stdin and process.stdout
    with contextlib.suppress(OSError):  # it died before reading
        process.stdin.write(source)
        await process.stdin.drain()
    try:
        await process.stdout.readexactly(output_chars + supervisor.CHUNK)
    except asyncio.IncompleteReadError as end:
        return end.partial
    except OSError:
        return b""
    return b""


async def _end(process: asyncio.subprocess.Process, folder: str, patience: float) -> str:
    """Wait until the supervisor has cleaned up, or do it in its place; what could not be done."""
    transport = process._transport  # type: ignore[attr-defined]
    source, said = map(transport.get_pipe_transport, (0, 1))
    if not source.is_closing():
        source.abort()  # it ends what still runs
    said.close()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await process.wait()
    transport.close()  # kills it if it still runs
    if process.returncode == 0:
        return ""
    try:
        await asyncio.to_thread(supervisor.sweep, folder)
    except OSError as error:
        return f"its folder could not be removed: {error.strerror}"
    return ""


@dataclass(frozen=True)
class Report:
    """What a supervisor says of a program.

    Args:
        code: Its exit code; negative where a signal ended it.
        stopped: Why it was stopped, if it was.
    """

    code: int
    stopped: str
    files: tuple[str, ...]
    output: str

    @classmethod
    def parse(cls, said: bytes) -> Report | None:
        """None where a supervisor did not get as far as a whole report."""
        try:
            _, code, stopped, number, rest = said.split(b"\0", 4)  # before the first zero: complaints of the interpreter's
            *files, output = rest.split(b"\0", int(number))
            if len(files) != int(number):
                return None
            text = output.decode(errors="replace").rstrip("\n")
            return cls(int(code), stopped.decode(), tuple(map(printable, files)), text)
        except ValueError:
            return None


def printable(name: bytes) -> str:
    """A file's name as text that can be shown and encoded."""
    text = name.decode(errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
