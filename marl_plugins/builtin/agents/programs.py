"""Runs the recipe's program for one trajectory, forked by the launcher (launcher.py)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marl_plugins.builtin.agents.isolation import environment_of, words_before
from marl_plugins.builtin.agents.per_loop import PerLoop
from marl_plugins.core.failures import InfrastructureFailure

KEPT_BYTES = 4000
"""Of what a program writes, its last."""
MOST_ANSWER_BYTES = 16 * 2**20
FULL_SECONDS = 0.02
"""After so long the launcher is told again what its queue had no room for."""
READY_SECONDS = 120.0
"""A launcher that has not imported everything by then is waited for no longer."""


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


class OutputTail:
    """Reads what a program writes, and keeps the last of it."""

    def __init__(self, descriptor: int):
        self._descriptor = descriptor
        self._kept = b""
        os.set_blocking(descriptor, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 2**16)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._descriptor)
        self._kept = (self._kept + data)[-KEPT_BYTES:]

    def text(self) -> str:
        """Returns the last lines that have been written."""
        with contextlib.suppress(OSError):
            self._read()
        return self._kept.decode(errors="replace").strip()

    def close(self) -> None:
        """Reads no more."""
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)


@dataclass(frozen=True)
class AgentProcess:
    """A process that the launcher has forked: how it is talked to, the status with which it ends,
    and what it writes."""

    connection: socket.socket
    ended: asyncio.Future[int]
    tail: OutputTail


class AgentProgram(ABC):
    """The recipe's program."""

    def start(self) -> None:  # noqa: B027
        """Prepares what all its trajectories share; called before the first.

        Raises:
            OSError: It cannot be started.
        """

    def listener(self) -> socket.socket | None:
        """Returns a socket on which the endpoint has to listen, so that the program reaches it;
        None: any on loopback."""
        return None

    @abstractmethod
    async def run(self, request: Mapping[str, Any]) -> AgentProgramResult:
        """Runs it once, and ends all that it has started, also where it is cancelled.

        Args:
            request: `prompt`, `item`, `endpoint`, `environment` and `seed`, as JSON values.
        """


class ForkedProgram(AgentProgram):
    """A program, each of whose trajectories is a fork of one launcher.

    Args:
        program: Its Python file and the function; or an empty text and the words of a command.
        python: In which it runs; None: the run's.
        folder: Where it works.
        environment: In addition to the run's.
        isolated: Whether it runs in namespaces of its own (isolation.py).
    """

    def __init__(
        self,
        program: Sequence[str],
        python: str | None,
        folder: Path,
        environment: Mapping[str, str],
        isolated: bool = False,
    ):
        script = Path(__file__).with_name("launcher.py")
        self._words = [python or sys.executable, str(script)]
        self._program = ["isolated" if isolated else "", *program]
        self._known = {**os.environ, **environment}
        if isolated:
            self._words = [*words_before(self._words[0], [script, folder]), *self._words]
            self._known = environment_of(environment)
        self._listener: socket.socket | None = None
        self._folder = folder
        self._isolated = isolated
        self._numbers = itertools.count()
        self._control: socket.socket | None = None
        self._ended: dict[str, asyncio.Future[int]] = {}

    def start(self) -> None:
        control = self._launched()
        control.settimeout(READY_SECONDS)
        with contextlib.suppress(TimeoutError):
            if not control.recv(64, socket.MSG_PEEK):
                raise OSError("the process that starts programs has ended at once")
        control.setblocking(False)

    def listener(self) -> socket.socket | None:
        if self._isolated:
            self._launched()
        return self._listener.dup() if self._listener is not None else None

    def _launched(self) -> socket.socket:
        """The socket to the launcher, which is started where there is none."""
        if self._control is None:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                process = subprocess.Popen(
                    [*self._words, str(theirs.fileno()), *self._program],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    cwd=self._folder,
                    env=self._known,
                    start_new_session=True,  # Ctrl-C is the run's to handle
                )
            if self._isolated:
                self._listener = _handed_out(ours)
            ours.setblocking(False)
            self._control = ours
            weakref.finalize(self, _end, process, ours, self._listener)
        return self._control

    async def run(self, request: Mapping[str, Any]) -> AgentProgramResult:
        async with self._forked("fork", request["endpoint"]["api_key"]) as process:
            answer = await self._exchanged(process.connection, request)
            return _result(answer, await process.ended, process.tail)

    @asynccontextmanager
    async def _forked(self, what: str, key: str) -> AsyncIterator[AgentProcess]:
        """Provides a process that the launcher has forked, and ends it.

        Args:
            what: `fork` for one trajectory, `share` for many.
            key: Stands in the environment of what the process starts.
        """
        number, loop = str(next(self._numbers)), asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        read, write = os.pipe()
        ended = self._ended[number] = loop.create_future()
        with self._listening():
            tail = OutputTail(read)
            try:
                try:
                    message = f"{what} {number} {key}".encode()
                    while not _sent(self._launched(), message, theirs.fileno(), write):  # noqa: ASYNC110 -- nothing says when there is room
                        await asyncio.sleep(FULL_SECONDS)
                finally:
                    theirs.close()
                    os.close(write)
                yield AgentProcess(ours, ended, tail)
            except OSError as error:
                raise InfrastructureFailure(
                    "program", f"the process that starts programs has gone ({error})"
                ) from error
            finally:
                ours.close()
                if not self._ended.pop(number).done():
                    self._kill(number)
                tail.close()

    def _kill(self, number: str) -> None:
        """Has a process ended, sooner or later."""
        with contextlib.suppress(OSError):  # the launcher has gone, and its programs with it
            if self._control is not None and not _sent(self._control, f"kill {number}".encode()):
                asyncio.get_running_loop().call_later(FULL_SECONDS, self._kill, number)

    @staticmethod
    async def _exchanged(connection: socket.socket, request: Mapping[str, Any]) -> bytes:
        """Sends a program what it is asked, and returns what it answers until it ends."""
        reader, writer = await asyncio.open_connection(sock=connection)
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            answer = b""
            while data := await reader.read(2**20):
                answer += data
                if len(answer) > MOST_ANSWER_BYTES:
                    return b""
            return answer
        except ConnectionError:  # it has ended before it has read or written everything
            return b""
        finally:
            writer.close()

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """Hears of ended programs in this event loop, as long as any runs."""
        loop = asyncio.get_running_loop()
        descriptor = self._launched().fileno()
        loop.add_reader(descriptor, self._heard, descriptor)
        try:
            yield
        finally:
            if not any(future.get_loop() is loop for future in self._ended.values()):
                loop.remove_reader(descriptor)

    def _heard(self, descriptor: int) -> None:
        """Takes one message of the launcher."""
        control = self._control
        assert control is not None
        try:
            message = control.recv(4096).decode()
        except BlockingIOError:
            return
        except OSError:
            message = ""
        if not message:
            asyncio.get_running_loop().remove_reader(descriptor)
            self._control = None
            for future in self._ended.values():
                if not future.done():
                    future.set_exception(OSError("its socket is closed"))
            return
        number, _, status = message.partition(" ")
        if (ended := self._ended.get(number)) and not ended.done():
            ended.set_result(int(status))


class SharedProgram(ForkedProgram):
    """An async function that runs for many trajectories at once in one process, which is forked
    anew for each event loop."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._workers = PerLoop(self._worker)

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Worker]:
        """Provides the process."""
        async with self._forked("share", "shared") as process, Worker.of(process) as worker:
            yield worker

    async def run(self, request: Mapping[str, Any]) -> AgentProgramResult:
        async with self._workers.used() as worker:
            return await worker.run(str(next(self._numbers)), request)


class Worker:
    """The process in which many trajectories run: a line of JSON for each that begins or is
    cancelled, and for each that ends."""

    def __init__(
        self, process: AgentProcess, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ):
        self._process = process
        self._reader = reader
        self._writer = writer
        self._results: dict[str, asyncio.Future[AgentProgramResult]] = {}

    @classmethod
    @asynccontextmanager
    async def of(cls, process: AgentProcess) -> AsyncIterator[Worker]:
        """Provides the worker that a process is, and hears what that says."""
        reader, writer = await asyncio.open_connection(
            sock=process.connection, limit=MOST_ANSWER_BYTES
        )
        worker = cls(process, reader, writer)
        hears = asyncio.create_task(worker._hear())
        try:
            yield worker
        finally:
            hears.cancel()
            await asyncio.gather(hears, return_exceptions=True)
            writer.close()

    async def run(self, number: str, request: Mapping[str, Any]) -> AgentProgramResult:
        """Runs the program once."""
        result: asyncio.Future[AgentProgramResult] = asyncio.get_running_loop().create_future()
        self._results[number] = result
        if self._process.ended.done():
            return await self._gone()
        self._send({"number": number, **request})
        try:
            return await result
        finally:
            del self._results[number]
            if result.cancelled():
                self._send({"number": number, "cancel": True})

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(ConnectionError):
            self._writer.write(json.dumps(message).encode() + b"\n")

    async def _hear(self) -> None:
        """Takes what the process says, and its end."""
        try:
            while line := await self._reader.readline():
                result = json.loads(line)
                if (waiting := self._results.get(result["number"])) and not waiting.done():
                    waiting.set_result(_end_of(result, "", self._process.tail.text()))
        except (ValueError, ConnectionError):
            pass  # an answer of more than is read, or the process's end
        ended = await self._gone()
        for waiting in self._results.values():
            if not waiting.done():
                waiting.set_result(ended)

    async def _gone(self) -> AgentProgramResult:
        """Returns how all end with the process."""
        try:
            how = _how(await asyncio.shield(self._process.ended))
        except OSError as error:
            how = f"({error})"
        return AgentProgramResult(
            None,
            "",
            f"the process that programs share ended {how}",
            traceback=self._process.tail.text(),
        )


def _sent(control: socket.socket, message: bytes, *descriptors: int) -> bool:
    """Tells the launcher something, and returns whether it could be: its queue may be full, while
    it imports or forks.

    Raises:
        OSError: It has gone.
    """
    try:
        socket.send_fds(control, [message], descriptors)
    except BlockingIOError:
        return False
    return True


def _handed_out(control: socket.socket) -> socket.socket:
    """Returns the socket that a launcher in namespaces hands out, before it does anything else.

    Raises:
        OSError: It does not.
    """
    control.settimeout(READY_SECONDS)
    _, descriptors, _, _ = socket.recv_fds(control, 64, 1)
    if not descriptors:
        raise OSError("the process that starts programs has ended at once")
    return socket.socket(fileno=descriptors[0])


def _end(
    process: subprocess.Popen[bytes], control: socket.socket, listener: socket.socket | None
) -> None:
    """Ends a launcher, which ends its programs."""
    control.close()
    if listener is not None:
        listener.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(2.0)
    process.kill()
    process.wait()


def _result(answer: bytes, status: int, tail: OutputTail) -> AgentProgramResult:
    """Returns how a forked program has ended, from what it has sent."""
    try:
        result = json.loads(answer)
    except ValueError:
        result = {}
    return _end_of(result, _how(status), tail.text())


def _end_of(result: Mapping[str, Any], how: str, written: str) -> AgentProgramResult:
    """Returns how a program has ended, from what it says of that; else `how`."""
    if "answer" in result:
        return AgentProgramResult(result["answer"])
    if "error" in result:
        raised = result["error"]
        return AgentProgramResult(
            None, raised["kind"], raised["text"], raised["place"], f"{raised['traceback']}{written}"
        )
    if "no_text" in result:
        return AgentProgramResult(
            None, "", f"it returned {result['no_text']}; expected a text", traceback=written
        )
    if "status" in result:
        return AgentProgramResult(None, "", f"it ended {_how(result['status'])}", traceback=written)
    return AgentProgramResult(None, "", f"it ended {how} without an answer", traceback=written)


def _how(status: int) -> str:
    return f"with exit code {status}" if status >= 0 else f"by {signal.Signals(-status).name}"
