"""The values that a sandbox is asked with and answers with, for all back ends."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

from marl_plugins.core.workspace import path_problem, tree_problem

Language = Literal["python", "bash", "pytest"]
"""How a program is run: pytest runs its tests."""
Status = Literal["finished", "failed", "time", "memory", "output", "killed"]
"""finished: exit code 0; failed: another one; killed: by a signal, or for a limit that has no word
of its own."""
OUT_OF_MEMORY = re.compile(r"[\w.]*MemoryError\b")
LIMITS: dict[int, tuple[Status, str]] = {
    signal.SIGXCPU: ("time", ": it took more than its time on a processor"),
    signal.SIGXFSZ: ("killed", ": it wrote too large a file"),
}
"""Signals of limits that the kernel holds."""


@dataclass(frozen=True)
class Limits:
    """Limits of what a program may take. One that takes more is stopped, which is its own fault.

    Args:
        seconds: Wall time.
        cpu_seconds: Time on a processor, of each process; default: a second more than `seconds`.
        memory_mb: Memory of each process beyond what was imported before, and of all its processes
            together.
        processes: Number of processes and threads at the same time.
        file_mb: Size of one file.
        disk_mb: Size of all files in the workspace.
        output_chars: How much of each stream is kept: its first and its last half.
        output_mb: How much may be written altogether.
    """

    seconds: float = 5.0
    cpu_seconds: float | None = None
    memory_mb: int = 512
    processes: int = 128
    file_mb: int = 512
    disk_mb: int = 1024
    output_chars: int = 2000
    output_mb: int = 4096

    @property
    def whole_cpu_seconds(self) -> int:
        """Time on a processor, of each process, as the kernel counts it."""
        return int(self.seconds + 1 if self.cpu_seconds is None else max(1.0, self.cpu_seconds))


@dataclass(frozen=True)
class Program:
    """One program and what it needs.

    Args:
        source: Its text.
        stdin: What it reads.
        files: Written into the workspace first, by their path in it.
        wanted: Paths in the workspace of files to be returned.
        merged: Both streams as one, in the order of writing, in `stdout`.
        modules: Whether a program of Python's may import modules from its workspace, before those
            that are installed; in a kept workspace another agent may have put them there.

    Raises:
        ValueError: A path that leaves the workspace, cannot be shown, or is a file and a folder.
    """

    source: str
    language: Language = "python"
    stdin: bytes = b""
    files: Mapping[str, bytes] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    limits: Limits = Limits()
    merged: bool = False
    modules: bool = False

    def __post_init__(self) -> None:
        for path in (*self.files, *self.wanted):
            if problem := path_problem(path):
                raise ValueError(f"path {path[:200]!r} {problem}")
        if problem := tree_problem(self.files):
            raise ValueError(f"files: {problem}")


@dataclass(frozen=True)
class ProgramResult:
    """The result of a program.

    Args:
        code: Its exit code, negative for a signal; None where it was stopped.
        reason: Why it was stopped or killed, for the agent to read.
        stdout, stderr: What it wrote; where it was longer, its first and last part with what was
            left out between them.
        seconds: Wall time, without waiting for a slot.
        names: The first names in its workspace, such that they can be shown.
        files: Contents of the files it was asked for; those that are not there, are no plain files,
            or are too large are absent.
    """

    status: Status
    code: int | None
    stdout: str
    stderr: str
    seconds: float
    reason: str = ""
    names: tuple[str, ...] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)


def judge(code: int | None, errors: str) -> tuple[Status, str]:
    """Returns the status of a program that was not stopped, and why it ended, if that has to be
    said."""
    if code is None:
        return "killed", ""
    if code < 0:
        name = signal.Signals(-code).name if -code in list(signal.Signals) else f"signal {-code}"
        status, why = LIMITS.get(-code, ("killed", ""))
        return status, f"killed by {name}{why}"
    if code == 0:
        return "finished", ""
    last = errors.rstrip().rpartition("\n")[2]
    return ("memory", "") if OUT_OF_MEMORY.match(last) else ("failed", "")


def excess(limit: Literal["time", "output"], limits: Limits) -> str:
    """Returns why a program was stopped that took more than a limit, for the agent to read."""
    if limit == "time":
        return f"stopped after {limits.seconds:g} s"
    return f"stopped: it wrote more than {limits.output_mb} MB"


class Sandbox(Protocol):
    """A place where programs run."""

    @property
    def isolation(self) -> str:
        """The level of isolation (`levels.py`), or the service's name."""
        ...

    async def run(self, program: Program, workspace: Path | None = None) -> ProgramResult:
        """Runs a program to its end.

        Args:
            workspace: An existing folder, kept as the program leaves it; None: a fresh one, removed
                afterwards.

        Raises:
            InfrastructureFailure: Something failed that is not the program's doing.
            RunPaused: No other program could be run either.
            ValueError: The workspace is outside the sandbox's folder of workspaces.
        """
        ...


class StartableSandbox(Sandbox, Protocol):
    """One that is opened and closed, as all of ours."""

    async def start(self) -> None:
        """Does what the first program would wait for.

        Raises:
            ConfigurationError: No program can be run, and the user can change that.
            InfrastructureFailure: It cannot be started.
        """
        ...

    async def close(self) -> None:
        """Ends all programs, and removes what they have left."""
        ...
