"""The owner's side of a supervisor and its fork server: starts them, hands programs over, notices
their end."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import tempfile
import time
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem, at
from marl_plugins.sandbox.fork_server import ENVIRONMENT
from marl_plugins.sandbox.pool import shut
from marl_plugins.sandbox.pool_owner import heard, python, start_pool
from marl_plugins.sandbox.removal import remove

if TYPE_CHECKING:
    from marl_plugins.sandbox.fork_server import ForkSettings

CLOSING_SECONDS = 60.0
"""Seconds for a supervisor to end and remove everything."""
LATE_SECONDS = 5.0
"""Seconds for what a supervisor that was killed has left."""


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
        raise InfrastructureFailure("sandbox", f"cannot make a folder: {error}") from error
    return Path(root).resolve()


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
        self._last = 0
        own = {"command": command, "server": settings}
        with contextlib.ExitStack() as undone:
            undone.callback(os.rmdir, root)
            try:
                self._errors = undone.enter_context(tempfile.TemporaryFile())
                process, self.control = start_pool(
                    python("marl_plugins.sandbox.supervisor", "-I", "-S"),
                    own,
                    stdout=subprocess.DEVNULL,
                    stderr=self._errors,
                    cwd="/",
                    env=ENVIRONMENT,
                )
            except OSError as error:
                raise InfrastructureFailure("sandbox", f"cannot start: {error}") from error
            undone.pop_all()
        self._release = weakref.finalize(self, release, process, root, self.control, self._errors)

    async def ready(self) -> None:
        """Waits until it takes programs.

        Raises:
            ConfigurationError: A module cannot be imported, or the warm-up fails.
            InfrastructureFailure: It has ended.
        """
        message = await heard(self.control)
        if message is None:
            self._errors.seek(0)
            detail = self._errors.read().decode(errors="replace").strip()[-500:] or "no message"
            raise InfrastructureFailure("sandbox", f"the sandbox could not be started: {detail}")
        if "refused" in message:
            where = at(key=f"tools.sandbox.{message['key']}")
            raise ConfigurationError(Problem("sandbox.prepare", where, message["refused"]))

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

    def end(self) -> None:
        """Takes no more programs, and lets the supervisor end and remove everything."""
        self.gone = True
        shut(self.control)

    def wait(self) -> None:
        """Blocks until the supervisor has ended."""
        self._release()


def release(
    process: subprocess.Popen[bytes], root: Path, control: socket.socket, errors: IO[bytes]
) -> None:
    """Shuts the connection down, upon which the supervisor ends and removes everything, and waits
    for it, or does what it has left."""
    shut(control)
    control.close()
    errors.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(CLOSING_SECONDS)
    until = time.monotonic() + LATE_SECONDS
    while root.exists() and time.monotonic() < until:
        try:
            remove(str(root))
        except OSError:  # the fork server still ends its programs
            time.sleep(0.02)
