"""Runs the recipe's program for one trajectory, forked by the launcher (launcher.py)."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.builtin.agents import launcher
from marl_plugins.builtin.agents.isolation import environment_of, words_before
from marl_plugins.builtin.agents.section import SILENT, AgentConfig
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.sandbox import pool
from marl_plugins.sandbox.pool_owner import forked, heard, in_memory, python, start_pool
from marl_plugins.sandbox.streams import Stream

KEPT_BYTES = 8000
"""Of what a program writes, its first and its last half."""
MOST_ANSWER_BYTES = 16 * 2**20
LIMITS = MOST_ANSWER_BYTES, KEPT_BYTES
"""Of the two streams that a process writes: its answer, and its output."""
READY_SECONDS = 120.0
"""A launcher that has not imported everything by then is not waited for."""


@dataclass(frozen=True)
class AgentProgramResult:
    """The end of a program.

    Args:
        answer: None where it gave none.
        kind, text, place: What it raised, or why there is no answer; `FILE:LINE` of its own, where
            one is known.
        traceback: As Python prints it, or else the last lines of what the program wrote.
    """

    answer: str | None
    kind: str = ""
    text: str = ""
    place: str = ""
    traceback: str = ""

    @property
    def said(self) -> str:
        """Returns what was wrong, as one line."""
        return ": ".join(filter(None, [self.kind, self.line]))

    @property
    def line(self) -> str:
        """The text's last line, which says what was wrong where a framework has put a traceback
        into it."""
        return next((line.strip() for line in reversed(self.text.splitlines()) if line.strip()), "")


async def code_of(connection: socket.socket) -> int:
    """Waits for the end of a process, and returns its exit code.

    Raises:
        ConnectionError: Whoever has forked it has gone.
        OSError: It could not be forked.
    """
    message = await heard(connection)
    if message is None:
        raise ConnectionError("its socket is closed")
    if "unavailable" in message:
        raise OSError(message["unavailable"])
    code: int = message["ended"]
    return code


def find_program(name: str, folder: Path) -> str | None:
    """Returns the path of a program: on PATH, or in the recipe's folder, where a name with a slash
    begins; None: there is none."""
    known = [] if os.path.dirname(name) else [shutil.which(name)]
    return next(filter(None, [*known, shutil.which(str(folder.absolute() / name))]), None)


class AgentProgram:
    """A program, each of whose trajectories is a fork of one launcher.

    Args:
        folder: The recipe's, where the program works.
    """

    def __init__(self, config: AgentConfig, folder: Path):
        folder, words = folder.absolute(), config.command
        self._settings: launcher.LaunchSettings = {
            "control": -1,
            "file": str(folder / config.file) if config.file else "",
            "function": config.function,
            "command": [find_program(word, folder) or word for word in words[:1]] + words[1:],
            "isolated": config.sandbox,
        }
        program = find_program(config.python, folder) if config.python else None
        self._words = python(launcher.__name__, program=program or "")
        environment = {**SILENT, "PYTHONHASHSEED": "0", **config.environment}
        self._known = {**os.environ, **environment}
        if config.sandbox:
            own = [Path(str(module.__file__)).parent for module in (launcher, pool)]
            self._words = [*words_before(self._words[0], [*own, folder]), *self._words]
            self._known = environment_of(environment)
        self._folder = folder
        self._control: socket.socket | None = None
        self._listener: socket.socket | None = None
        self._end: Callable[[], object] = lambda: None

    def start(self) -> socket.socket:
        """Returns the socket to the launcher, which is started where there is none.

        Raises:
            OSError: It cannot be started.
        """
        if self._control is None:
            process, control = start_pool(
                self._words, self._settings, cwd=self._folder, env=self._known
            )
            control.settimeout(READY_SECONDS)
            ready, descriptors, _, _ = socket.recv_fds(control, 64, 1)
            control.setblocking(False)
            self._listener = socket.socket(fileno=descriptors[0]) if descriptors else None
            self._end = weakref.finalize(self, end, process, control, self._listener)
            if not ready:
                self._end()
                raise OSError("the process that starts programs has ended at once")
            self._control = control
        return self._control

    def listener(self) -> socket.socket | None:
        """Returns a socket on which the endpoint has to listen, so that the program reaches it;
        None: any on loopback."""
        self.start()
        return self._listener.dup() if self._listener is not None else None

    async def run(self, request: Mapping[str, Any]) -> AgentProgramResult:
        """Runs it once, and ends all that it has started, also where it is cancelled. A launcher
        that has gone is replaced afterwards.

        Args:
            request: `prompt`, `item`, `endpoint`, `environment` and `seed`, as JSON values.

        Raises:
            InfrastructureFailure: The launcher has gone, or could not fork.
        """
        try:
            control, content = self.start(), json.dumps(request).encode()
            with in_memory(content) as asked:
                async with forked(control, {}, [asked], LIMITS) as (connection, streams):
                    return self._result(await code_of(connection), *streams)
        except OSError as error:
            if isinstance(error, ConnectionError):
                self._end()
                self._control = None
            what = f"the process that starts programs has gone ({error})"
            raise InfrastructureFailure("program", what) from error

    def _result(self, code: int, answer: Stream, output: Stream) -> AgentProgramResult:
        """Returns how a program has ended."""
        text, written = answer.text(), output.text().strip()
        how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        if answer.kept.left_out:
            how = f"it returned more than {MOST_ANSWER_BYTES} bytes"
            return AgentProgramResult(None, "", how, traceback=written)
        report: launcher.Report = {}
        if not self._settings["command"]:
            report = json.loads(text or "{}")
        elif code == 0:
            report = {"answer": text.removesuffix("\n")}
        if "answer" in report:
            return AgentProgramResult(report["answer"])
        if "error" in report:
            raised = report["error"]
            return AgentProgramResult(None, **raised | {"traceback": raised["traceback"] + written})
        return AgentProgramResult(None, "", f"it ended {how}", traceback=written)


def end(
    process: subprocess.Popen[bytes], control: socket.socket, listener: socket.socket | None
) -> None:
    """Ends a launcher, which ends its programs."""
    pool.shut(control)
    control.close()
    if listener is not None:
        listener.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
    process.kill()
    process.wait()
