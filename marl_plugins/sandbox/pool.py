"""A process that forks others on request, and ends each with all that it has started: the sandbox's
fork server, and the launcher of recipes' programs (builtin/agents/launcher.py).

    owner -> pool    a request in JSON, with descriptors: first a connection, whose other end the
                     owner keeps (pool_owner.py)
    pool -> owner    on that connection: `unavailable` where nothing could be forked; else `ended`
                     with the exit code, once nothing is left of what was forked

Whoever closes the owner's end of a connection, or shuts it down, has its process ended. The pool is
a subreaper, and so is all that it forks: what a process leaves stays below it as long as it runs,
and is the pool's child afterwards, which knows its own.

Standard library only: this is imported without the package, by a Python that may have no
site-packages.
"""

import contextlib
import json
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Iterator, Sequence
from typing import Any

from marl_plugins.sandbox.kernel import libc

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
REAP_MILLISECONDS = 1
"""Milliseconds between two attempts to end what is left."""
PATIENCE_SECONDS = 5.0
"""Seconds after which what cannot be ended is left."""
LARGEST_MESSAGE_BYTES = 1 << 17
"""Bytes of a message."""
MOST_DESCRIPTORS = 5
"""Maximum number of descriptors that come with a message."""


def tell(connection: socket.socket, **message: Any) -> None:
    """Sends a message; to nobody where either end is closed."""
    with contextlib.suppress(OSError):
        connection.send(json.dumps(message).encode())


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Returns a message with its descriptors; None where the other end is closed, also with
    messages that it has not read."""
    try:
        data, descriptors, _, _ = socket.recv_fds(
            connection, LARGEST_MESSAGE_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    return json.loads(data) if data else None, descriptors


def shut(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Shuts a connection down, whoever else has inherited this end of it."""
    with contextlib.suppress(OSError):  # the other end has gone
        connection.shutdown(how)


def die_with_parent() -> None:
    """Has this process killed when the one that has forked it ends."""
    libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def become_program(streams: Sequence[int]) -> None:
    """Makes a forked process one of its own: it ends with its parent, has none of its handlers, and
    these standard streams."""
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)


def become_subreaper() -> None:
    """Makes this process the parent of what those below it leave."""
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill(pid: int) -> None:
    """Ends a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Returns the children of a process, whichever of its threads has started them."""
    children: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children", "rb") as file:
                children += map(int, file.read().split())
    except OSError:  # it has ended
        pass
    return children


def descendants(top: int) -> Iterator[int]:
    """Yields all processes below one, each before its children: one that is killed now starts no
    more of them."""
    waiting = [top]
    while waiting:
        for child in children_of(waiting.pop()):
            yield child
            waiting.append(child)


def reaped() -> Iterator[tuple[int, int]]:
    """Yields the children that have ended, with their exit codes: not too many at once, because new
    ones may end as fast as they are collected."""
    for _ in range(1000):
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


class Forked:
    """A process that was forked for a request.

    Args:
        init: Process 1 of its pid namespace; 0 where it has none, or once that has ended.
        connection: To the owner.
    """

    def __init__(self, pid: int, init: int, connection: socket.socket):
        self.pid = pid
        self.init = init
        self.connection = connection
        self.code: int | None = None

    def kill(self) -> None:
        """Begins to end it: with process 1 its whole pid namespace ends; elsewhere what it leaves
        becomes the pool's child."""
        if self.init or self.code is None:  # else its number may be another process's by now
            kill(self.init or self.pid)


class Pool:
    """Forks processes, ends them, and says what came of them.

    Args:
        control: The socket on which requests come.
    """

    def __init__(self, control: socket.socket):
        control.set_inheritable(False)
        self.control = control
        self.running: dict[int, Forked] = {}
        """By their process."""
        self.ending: list[Forked] = []
        """Those that have ended, and may have left others."""
        self.woken, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        become_subreaper()
        self.poll = select.poll()

    def fork(self) -> tuple[int, int]:
        """Forks this process; what `os.fork` returns, and process 1 of a pid namespace that it is
        in, else 0."""
        return os.fork(), 0

    def become(
        self, request: dict[str, Any], connection: socket.socket, descriptors: list[int]
    ) -> None:
        """Does what was requested, in a process that was forked for that and ends afterwards."""
        raise NotImplementedError

    def ended(self, forked: Forked) -> None:
        """Does what is to be done when nothing is left of a process."""

    def serve(self, *watched: socket.socket) -> None:
        """Serves until the owner has gone, or whoever is at the other end of what is `watched`."""
        ends = {other.fileno() for other in watched}
        for descriptor in (self.control.fileno(), self.woken, *ends):
            self.poll.register(descriptor, select.POLLIN)
        while True:
            ready = {fd for fd, _ in self.poll.poll(REAP_MILLISECONDS if self.ending else None)}
            if self.woken in ready:
                os.read(self.woken, 4096)
            for forked in self.running.values():
                if forked.connection.fileno() in ready:
                    self.poll.unregister(forked.connection)
                    forked.kill()
            if ready & ends or (self.control.fileno() in ready and not self._start()):
                break
            self._reap()
        for forked in self._all():
            shut(forked.connection)  # its owner has to know that it has not ended by itself
            forked.kill()
        until = time.monotonic() + PATIENCE_SECONDS
        while (self.running or self.ending) and time.monotonic() < until:
            self._reap()
            time.sleep(REAP_MILLISECONDS / 1000)

    def _start(self) -> bool:
        """Fork a process for the next request; whether the owner is there."""
        request, descriptors = receive(self.control)
        if request is None:
            return False
        connection = socket.socket(fileno=descriptors.pop(0))
        try:
            pid, init = self.fork()
        except OSError as error:
            tell(connection, unavailable=f"no process could be started: {error}")
            connection.close()
        else:
            if pid == 0:
                self._become(request, connection, descriptors)
            self.running[pid] = Forked(pid, init, connection)
            self.poll.register(connection, select.POLLRDHUP)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _become(
        self, request: dict[str, Any], connection: socket.socket, descriptors: list[int]
    ) -> None:
        code = 1
        try:
            for other in (self.control, *(forked.connection for forked in self._all())):
                other.close()  # else nobody would notice its end
            os.setsid()
            become_subreaper()
            self.become(request, connection, descriptors)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:  # never back into the pool
            os._exit(code)

    def _reap(self) -> None:
        """Collect what has ended, end what that has left, and report those of which nothing is
        left."""
        for pid, code in reaped():
            if forked := self.running.pop(pid, None):
                with contextlib.suppress(KeyError):  # it was to be ended
                    self.poll.unregister(forked.connection)
                forked.code = code
                self.ending.append(forked)
                forked.kill()
            for forked in self._all():
                if forked.init == pid:
                    forked.init = 0
        if not self.ending or self._end_orphans():
            return
        for forked in [forked for forked in self.ending if not forked.init]:
            self.ending.remove(forked)
            self.ended(forked)
            tell(forked.connection, ended=forked.code)
            forked.connection.close()

    def _all(self) -> list[Forked]:
        return [*self.running.values(), *self.ending]

    def _end_orphans(self) -> bool:
        """Kill children that were not forked for a request: others have left them. Whether there
        were any."""
        own = {*self.running, *(forked.init for forked in self._all())}
        orphans = [pid for pid in children_of(os.getpid()) if pid not in own]
        for orphan in orphans:
            kill(orphan)  # before its children, so that it starts no more of them
            for pid in descendants(orphan):
                kill(pid)
        return bool(orphans)
