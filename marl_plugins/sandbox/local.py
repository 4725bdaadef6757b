"""Programs on this machine, forked from processes that are kept warm.

    owner        this process: hands programs over, reads what they write, says when their time is
                 up (server.py)
    supervisor   one for each set of imports: ends and removes everything when the owner has gone
                 (supervisor.py)
    fork server  below it, in bubblewrap where the level is `namespaces`: one fork for each program
    (fork_server.py)

A fork server that has ended is replaced. Programs that had begun in it are infrastructure failures,
because running one twice could do twice what it does to its workspace; those that had not begun are
run in the new one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.core.deadlines import not_counted
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.machine_limits import usable_cores
from marl_plugins.core.workspace import read_files
from marl_plugins.sandbox import levels
from marl_plugins.sandbox.files import first_names, own_workspace, write_files
from marl_plugins.sandbox.pool import shut
from marl_plugins.sandbox.pool_owner import forked, heard, in_memory, python
from marl_plugins.sandbox.program import Program, ProgramResult, Status, excess, judge
from marl_plugins.sandbox.removal import remove
from marl_plugins.sandbox.section import Level, SandboxConfig
from marl_plugins.sandbox.server import SandboxServer, new_root
from marl_plugins.sandbox.streams import Stream

if TYPE_CHECKING:
    from marl_plugins.sandbox.fork_server import ForkSettings

STARTING_SECONDS = 120.0
"""Seconds for a fork server to import what it has to, or to begin a program."""
LATE_SECONDS = 5.0
"""Seconds in which a program that is to be ended has to have ended; then its fork server is
replaced."""
MAX_START_ATTEMPTS = 3
"""Maximum number of fork servers that a program is given to, as long as it has not begun."""
RETURNED_BYTES = 256 << 20
"""Maximum number of bytes of the files that a program was asked for."""


class LocalSandbox:
    """Programs on this machine, in one event loop (program.Sandbox). What it has started ends with
    it, and with its process.

    Raises:
        ConfigurationError: The level is unavailable on this machine.
    """

    def __init__(
        self,
        config: SandboxConfig,
        *,
        packages: bool = True,
        concurrency: int | None = None,
        workspaces: Path | None = None,
    ):
        self.machine = levels.examine()
        self.isolation: Level = levels.choose(config.isolation, self.machine)
        self._workspaces = workspaces.resolve(strict=True) if workspaces is not None else None
        self._imports = tuple(config.imports)
        self._warm_up = Path(config.warm_up).read_text() if config.warm_up else ""
        self._packages = packages
        self._slots: asyncio.LifoQueue[int] = asyncio.LifoQueue(concurrency or usable_cores())
        for slot in range(self._slots.maxsize):
            self._slots.put_nowait(slot)
        self._servers: dict[tuple[str, ...], asyncio.Task[SandboxServer]] = {}
        self._launched: list[SandboxServer] = []

    async def start(self) -> None:
        """Starts the fork server of Python's programs, which the first of them would do otherwise.

        Raises:
            ConfigurationError: A module cannot be imported.
            InfrastructureFailure: It cannot be started.
        """
        await self._server(self._imports)

    async def close(self) -> None:
        """Ends all programs, and removes their folders."""
        for server in self._launched:
            server.end()
        for starting in self._servers.values():
            await asyncio.wait([starting])
        for server in self._launched:
            server.end()  # also one that has started meanwhile
            await asyncio.to_thread(server.wait)

    async def run(self, program: Program, workspace: Path | None = None) -> ProgramResult:
        """Runs a program to its end (program.Sandbox.run)."""
        workspace = own_workspace(workspace, self._workspaces)
        imports = (*self._imports, "pytest") if program.language == "pytest" else self._imports
        async with not_counted():
            slot = await self._slots.get()
        run = None
        try:
            for _ in range(MAX_START_ATTEMPTS):
                run = LocalRun(program, workspace, await self._server(imports), slot)
                if (completed := await run.result()) is not None:
                    return completed
            raise InfrastructureFailure(
                "sandbox", f"{MAX_START_ATTEMPTS} fork servers ended before they began a program"
            )
        finally:
            if (
                run is not None and run.cleaning is not None
            ):  # a fresh workspace takes its place until it is removed
                run.cleaning.add_done_callback(lambda _: self._slots.put_nowait(slot))
            else:
                self._slots.put_nowait(slot)

    async def _server(self, imports: tuple[str, ...]) -> SandboxServer:
        """The fork server that has imported these modules, started if there is none."""
        starting = self._servers.get(imports)
        if starting is None or (
            starting.done()
            and (starting.cancelled() or starting.exception() or starting.result().gone)
        ):
            starting = self._servers[imports] = asyncio.create_task(self._started(imports))
        return await asyncio.shield(starting)

    async def _started(self, imports: tuple[str, ...]) -> SandboxServer:
        kept = [str(self._workspaces)] if self._workspaces else []
        read = levels.readable(self.isolation)
        try:
            user = levels.users(
                self.isolation, [*read[len(levels.SYSTEM) :], *kept], self._slots.maxsize
            )
        except OSError as error:
            raise InfrastructureFailure("sandbox", f"cannot start: {error}") from error
        root = new_root(shared=user is not None)
        namespaces = self.isolation == "namespaces"
        settings: ForkSettings = {
            "root": str(root),
            "imports": list(imports),
            "warm_up": self._warm_up,
            "abi": self.machine.abi if self.isolation != "process" else 0,
            "read": read,
            "hidden": [str(root), *kept],
            "namespaces": namespaces,
            "user": user,
            "filters": self.machine.filters,
        }
        command = python(
            "marl_plugins.sandbox.fork_server", "-I", *(() if self._packages else ("-S",))
        )
        if namespaces:
            own = [*read, os.path.dirname(__file__)]
            command = [*levels.bubblewrap(self.machine.bwrap, own, settings["hidden"]), *command]
        server = SandboxServer(root, settings, command)
        self._launched.append(server)
        try:
            async with asyncio.timeout(STARTING_SECONDS):
                await server.ready()
        except BaseException as error:
            server.end()
            if not isinstance(error, TimeoutError):
                raise
            raise InfrastructureFailure(
                "sandbox", f"the sandbox has not started within {STARTING_SECONDS:.0f} s"
            ) from None
        return server


class LocalRun:
    """One program in a fork server."""

    def __init__(self, program: Program, workspace: Path | None, server: SandboxServer, slot: int):
        self.program = program
        self.cleaning: asyncio.Future[None] | None = None
        """Done when its fresh workspace has been removed."""
        self._workspace = workspace
        self._server = server
        self._slot = slot
        self._connection: socket.socket
        self._loop = asyncio.get_running_loop()
        self._begun: float | None = None
        self._code: int | None = None
        self._stopped: tuple[Status, str] | None = None
        self._unavailable = ""
        self._refused: list[str] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._written = 0

    async def result(self) -> ProgramResult | None:
        """Returns the result of the program; None where its fork server has ended before it began.

        Raises:
            InfrastructureFailure: Something failed that is not the program's doing.
        """
        folder, program = self._workspace, self.program
        chars = program.limits.output_chars
        try:
            folder = folder or self._server.fresh()
            if program.files:
                await asyncio.to_thread(write_files, folder, program.files)
            with (
                in_memory(program.source.encode(errors="replace")) as source,
                in_memory(program.stdin) as stdin,
            ):
                async with forked(
                    self._server.control,
                    self._request(folder),
                    [source, stdin],
                    [chars] if program.merged else [chars, chars],
                    self._wrote,
                ) as (connection, streams):
                    await self._end(connection)
                    return None if self._begun is None else await self._completed(folder, streams)
        except ConnectionError:
            self._server.end()
            return None
        except OSError as error:
            if isinstance(error, FileNotFoundError) and self._workspace is None:
                self._server.end()  # its folder is gone, so it has ended
                return None
            raise InfrastructureFailure("sandbox", f"a program cannot start: {error}") from error
        finally:
            for timer in self._timers:
                timer.cancel()
            if folder is not None and self._workspace is None:
                self.cleaning = asyncio.create_task(asyncio.to_thread(clean, folder.parent))

    async def _end(self, connection: socket.socket) -> None:
        """Wait until it has ended.

        Raises:
            InfrastructureFailure: Something failed that is not the program's doing.
        """
        self._connection = connection
        self._timers.append(
            self._loop.call_later(
                STARTING_SECONDS, lambda: self._give_up() if self._begun is None else None
            )
        )
        hearing = asyncio.create_task(self._hear(connection))
        try:
            await asyncio.shield(hearing)
        except asyncio.CancelledError:
            self._stop("killed", "no longer wanted")
            await asyncio.wait([hearing])
            raise
        if self._unavailable:
            raise InfrastructureFailure("sandbox", self._unavailable)

    async def _hear(self, connection: socket.socket) -> None:
        """Takes note of what the fork server and the supervisor say of the program, to its end."""
        limits = self.program.limits
        while message := await heard(connection):
            if "begun" in message:
                self._begun = time.monotonic()
                self._timers.append(
                    self._loop.call_later(
                        limits.seconds, self._stop, "time", excess("time", limits)
                    )
                )
            elif "unavailable" in message:
                self._unavailable = message["unavailable"]
            elif "refused" in message:
                self._refused.append(message["refused"])
            elif "exceeded" in message:
                self._stop(message["exceeded"], f"stopped: {message['reason']}")
            else:
                self._code = message["ended"]
                if self._stopped and self._stopped[0] == "time" and self._code != -signal.SIGKILL:
                    self._stopped = None  # it had ended before this process came to stop it
                return
        if self._begun is not None and self._stopped is None:
            self._unavailable = "the fork server has ended while the program ran"

    def _request(self, folder: Path) -> dict[str, Any]:
        limits = self.program.limits
        return {
            "slot": self._slot,
            "folder": str(folder),
            "language": self.program.language,
            "memory": limits.memory_mb << 20,
            "seconds": limits.whole_cpu_seconds,
            "file": min(limits.file_mb, limits.disk_mb) << 20,
            "disk": limits.disk_mb << 20,
            "processes": limits.processes,
            "modules": self.program.modules,
        }

    def _wrote(self, count: int) -> None:
        self._written += count
        if self._written > self.program.limits.output_mb << 20:
            self._stop("output", excess("output", self.program.limits))

    def _stop(self, status: Status, reason: str) -> None:
        if self._stopped is None:
            self._stopped = (status, reason)
            shut(self._connection, socket.SHUT_WR)
            self._timers.append(self._loop.call_later(LATE_SECONDS, self._give_up))

    def _give_up(self) -> None:
        """Waits no longer, and has the fork server replaced."""
        self._server.end()
        shut(self._connection)

    async def _completed(self, folder: Path, streams: list[Stream]) -> ProgramResult:
        assert self._begun is not None
        seconds = time.monotonic() - self._begun
        texts = [stream.text() for stream in streams]
        status, reason = self._stopped or judge(self._code, texts[-1])
        if self._refused and status != "finished":
            reason = "; ".join(
                filter(None, [reason, f"the sandbox refused {', '.join(self._refused)}"])
            )
        files = await asyncio.to_thread(read_files, folder, self.program.wanted, RETURNED_BYTES)
        return ProgramResult(
            status,
            None if self._stopped else self._code,
            texts[0],
            "".join(texts[1:]),
            seconds,
            reason,
            first_names(folder),
            files,
        )


def clean(folder: Path) -> None:
    """Removes a fresh workspace; what cannot be removed is tried again, with all others, at the
    end."""
    with contextlib.suppress(OSError):
        remove(os.fspath(folder))
