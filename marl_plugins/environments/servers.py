"""Servers of a run: started in sessions of their own, ended with it, however it ends.

Each has a keeper (drivers/keeper.py), which starts it again where it has ended and ends it when the
run's end of a pipe is closed. A folder has a file for each session, with the server's port: whoever
plays an episode locks one. The files go where the server has ended for good.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

from marl_plugins import ConfigurationError, Problem, at

KEEPER = Path(__file__).parent / "drivers" / "keeper.py"
LAST_CHARS = 1500
"""Of what a server has written, in a message."""


class ServerPool:
    """The servers of one run."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="marl-servers-"))
        self.keepers: dict[int, subprocess.Popen[bytes]] = {}
        """By the server's port."""
        self.stop = weakref.finalize(self, end, self.keepers, self.folder)

    def start(
        self,
        command: Sequence[str],
        *,
        servers: int,
        sessions: int,
        folder: Path,
        environment: Mapping[str, str],
        restarts: int,
    ) -> None:
        """Starts servers, until there are so many.

        Raises:
            OSError: A keeper cannot be started.
        """
        while len(self.keepers) < servers:
            with socket.create_server(("127.0.0.1", 0)) as free:
                port = free.getsockname()[1]
            words = [word.replace("{port}", str(port)) for word in command]
            slots = [self.folder / f"{port}-{session}.slot" for session in range(sessions)]
            for slot in slots:
                slot.write_text(str(port))
            with self._log(port).open("wb") as log:
                self.keepers[port] = subprocess.Popen(
                    [sys.executable, KEEPER, str(restarts), json.dumps(words), *slots],
                    cwd=folder,
                    env={**os.environ, **environment},
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def wait(self, seconds: float) -> None:
        """Waits until all listen.

        Raises:
            ConfigurationError: One has ended, or does not listen in time.
        """
        last = time.monotonic() + seconds
        for port, keeper in self.keepers.items():
            while not listens(port):
                if keeper.poll() is not None:
                    got = f"it has ended with {keeper.returncode}"
                elif time.monotonic() < last:
                    time.sleep(0.2)
                    continue
                else:
                    got = f"it does not answer within {seconds:g} s"
                written = self._log(port).read_text(errors="replace").strip()[-LAST_CHARS:]
                got += f": {written or 'it has written nothing'}"
                raise ConfigurationError(
                    Problem(
                        "env.server",
                        at(key="env.openenv"),
                        got,
                        fix="start it by hand, on a port of your own, to see why",
                    )
                )

    def _log(self, port: int) -> Path:
        return self.folder / f"{port}.log"


def listens(port: int) -> bool:
    """Returns whether somebody listens on a port of this machine."""
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


def end(keepers: Mapping[int, subprocess.Popen[bytes]], folder: Path) -> None:
    """Ends servers, and removes what is known of them."""
    for keeper in keepers.values():
        assert keeper.stdin is not None
        keeper.stdin.close()
    for keeper in keepers.values():
        keeper.wait()
    shutil.rmtree(folder, ignore_errors=True)
