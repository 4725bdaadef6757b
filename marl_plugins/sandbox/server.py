"""The owner's side of a supervisor and its fork server: starts them, talks to them, notices their
end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem, at
from marl_plugins.sandbox.fork_server import ENVIRONMENT, LARGEST_MESSAGE_BYTES
from marl_plugins.sandbox.removal import remove

if TYPE_CHECKING:
    from marl_plugins.sandbox.fork_server import ForkSettings

CLOSING_SECONDS = 60.0
"""Seconds for a supervisor to end and remove everything."""
LATE_SECONDS = 5.0
"""Seconds for what a supervisor that was killed has left."""
BUSY_SECONDS = 0.002
"""Seconds between two attempts to send to a fork server whose queue is full."""
CURES = {
    errno.EMFILE: "`ulimit -n` is the limit; raise it",
    errno.ENFILE: "the machine's limit is in /proc/sys/fs/file-max",
    errno.EAGAIN: "`ulimit -u` is the limit of processes; raise it",
    errno.ENOSPC: "make room, or set TMPDIR to another folder",
    errno.EDQUOT: "make room, or set TMPDIR to another folder",
}
BOOT = "import sys; sys.path.insert(0, {here!r}); import {module}; del sys.path[0]; {module}.main()"


def python(module: str, *options: str) -> list[str]:
    """Returns the words that start a module of this folder without the package."""
    return [
        sys.executable,
        "-I",
        *options,
        "-c",
        BOOT.format(here=os.path.dirname(__file__), module=module),
    ]


def unavailable(what: str, error: OSError) -> InfrastructureFailure:
    """Returns the failure for what this machine refuses, with the cure where it is known."""
    cure = CURES.get(error.errno or 0)
    return InfrastructureFailure("sandbox", f"{what}: {error}{f'; {cure}' if cure else ''}")


def new_root(shared: bool) -> Path:
    """Returns a folder for fresh workspaces.

    Args:
        shared: Whether other users have to reach the workspaces in it.

    Raises:
        InfrastructureFailure: There is no room for it.
    """
    try:
        root = tempfile.mkdtemp(prefix="marl-sandbox-")
        os.chmod(root, 0o711 if shared else 0o700)
    except OSError as error:
        raise unavailable("the sandbox cannot make a folder", error) from error
    return Path(root).resolve()


class Listener(Protocol):
    """A listener that wants to know what comes of a program."""

    def hear(self, message: dict[str, Any]) -> None:
        """Takes note of what the fork server says of the program."""

    def lose(self) -> None:
        """Notes that the fork server has ended."""


class SandboxServer:
    """A supervisor and its fork server.

    Args:
        root: Where fresh workspaces are made; removed at the end.
        settings: Of the fork server, as far as they are known.
        command: What starts the fork server, up to its settings.

    Raises:
        InfrastructureFailure: No process could be started.
    """

    def __init__(self, root: Path, settings: ForkSettings, command: Sequence[str]):
        self.root = root
        self.gone = False
        """Whether it takes no more programs."""
        self._loop = asyncio.get_running_loop()
        self.ready: asyncio.Future[None] = self._loop.create_future()
        self._runs: dict[int, Listener] = {}
        self._removals: dict[str, asyncio.Future[None]] = {}
        self._last = 0
        with contextlib.ExitStack() as undone:
            undone.callback(os.rmdir, root)
            try:
                self._said = undone.enter_context(tempfile.TemporaryFile())
                self._programs, programs = map(
                    undone.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                )
                self._control, control = map(
                    undone.enter_context, socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                )
                with programs, control:
                    process = self._launched(settings, command, programs.fileno(), control.fileno())
            except OSError as error:
                raise unavailable("the sandbox cannot start a process", error) from error
            undone.pop_all()
        self._release = weakref.finalize(
            self, release, process, root, self._programs, self._control, self._said
        )
        for connection, hear in (
            (self._programs, self._hear),
            (self._control, self._hear_supervisor),
        ):
            connection.setblocking(False)
            self._loop.add_reader(connection.fileno(), hear)

    def _launched(
        self, settings: ForkSettings, command: Sequence[str], programs: int, control: int
    ) -> subprocess.Popen[bytes]:
        """The supervisor's process, which is given its ends of the sockets."""
        own = {
            "control": control,
            "server": programs,
            "root": str(self.root),
            "environment": ENVIRONMENT,
        }
        settings_json = json.dumps({**settings, "owner": programs})
        return subprocess.Popen(
            [
                *python("supervisor", "-S"),
                json.dumps({**own, "command": [*command, settings_json]}),
            ],
            pass_fds=[control, programs],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            cwd="/",
            env=ENVIRONMENT,
            start_new_session=True,  # Ctrl-C is the run's to handle
        )

    @property
    def started(self) -> bool:
        """Returns whether the server takes programs, or has."""
        return self.ready.done() and not self.ready.cancelled() and self.ready.exception() is None

    def fresh(self) -> Path:
        """Returns a new empty workspace, in a folder of its own, in which it stays where its
        program renames it.

        Raises:
            OSError: There is no room for it, or the supervisor has ended and removed the root.
        """
        self._last += 1
        folder = self.root / str(self._last) / "workspace"
        folder.parent.mkdir(stat.S_IMODE(self.root.stat().st_mode))
        folder.mkdir(0o700)
        return folder

    def remove(self, workspace: Path) -> asyncio.Future[None]:
        """Has a fresh workspace removed, and returns when it is."""
        folder = workspace.parent
        removed = self._removals[str(folder)] = self._loop.create_future()
        if self.gone:
            removed.set_result(None)
        else:
            self._tell(self._control, {"remove": str(folder)})
        return removed

    async def begin(
        self, run: Listener, request: dict[str, Any], descriptors: Sequence[int]
    ) -> int:
        """Hands a program over, and returns its number."""
        self._last += 1
        number = self._last
        self._runs[number] = run
        message = json.dumps({"run": number, **request}).encode()
        while not self.gone:
            try:
                socket.send_fds(self._programs, [message], descriptors)
                break
            except BlockingIOError:
                await asyncio.sleep(BUSY_SECONDS)
            except OSError as error:
                if error.errno not in (errno.ETOOMANYREFS, errno.ENOBUFS):
                    self._lose()
                    break
                await asyncio.sleep(BUSY_SECONDS)
        return number

    def stop(self, number: int) -> None:
        """Has a program ended."""
        if not self.gone:
            self._tell(self._programs, {"end": number})

    def forget(self, number: int) -> None:
        """Notes that a program is of no interest any more."""
        self._runs.pop(number, None)

    def end(self) -> None:
        """Takes no more programs, and lets the supervisor end and remove everything."""
        self._lose()

    def wait(self) -> None:
        """Blocks until the supervisor has ended."""
        self._release()

    def _tell(self, connection: socket.socket, message: dict[str, Any]) -> None:
        try:
            connection.send(json.dumps(message).encode())
        except BlockingIOError:
            self._loop.call_later(
                BUSY_SECONDS, lambda: None if self.gone else self._tell(connection, message)
            )
        except OSError:
            self._lose()

    def _hear(self) -> None:
        if (message := self._receive(self._programs)) is None:
            return
        if "ready" in message:
            self.ready.set_result(None)
        elif "refused" in message:
            where, got, fix = (
                at(key=f"tools.sandbox.{message['key']}"),
                message["refused"],
                message["fix"],
            )
            self.ready.set_exception(
                ConfigurationError(Problem("sandbox.prepare", where, got, fix=fix))
            )
        elif run := self._runs.get(next(iter(message.values()))):
            run.hear(message)

    def _hear_supervisor(self) -> None:
        if (message := self._receive(self._control)) is None:
            return
        if "refused" in message:
            if run := self._runs.get(message["run"]):
                run.hear(message)
        elif removed := self._removals.pop(message["removed"], None):
            removed.set_result(None)

    def _receive(self, connection: socket.socket) -> dict[str, Any] | None:
        """The next message, if there is one; notices the end."""
        try:
            data = connection.recv(LARGEST_MESSAGE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._lose()
            return None
        message: dict[str, Any] = json.loads(data)
        return message

    def _lose(self) -> None:
        """Gives the server up, which is gone or has to go: nobody waits for it any longer."""
        if self.gone:
            return
        self.gone = True
        for connection in (self._programs, self._control):
            self._loop.remove_reader(connection.fileno())
            connection.close()
        self._said.seek(0)
        message = self._said.read().decode(errors="replace").strip()[-500:]
        self._said.close()
        if not self.ready.done():
            self.ready.set_exception(
                InfrastructureFailure(
                    "sandbox", f"the sandbox could not be started: {message or 'no message'}"
                )
            )
        for run in list(self._runs.values()):
            run.lose()
        for removed in self._removals.values():
            if not removed.done():
                removed.set_result(None)


def release(
    process: subprocess.Popen[bytes], root: Path, *opened: socket.socket | IO[bytes]
) -> None:
    """Closes the connections, upon which the supervisor ends and removes everything, and waits for
    it, or does what it has left."""
    for end in opened:
        end.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(CLOSING_SECONDS)
    until = time.monotonic() + LATE_SECONDS
    while root.exists() and time.monotonic() < until:
        try:
            remove(str(root))
        except OSError:  # the fork server still ends its programs
            time.sleep(0.02)
