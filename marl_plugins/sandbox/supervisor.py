"""Stands above a fork server (fork_server.py) and all that it has started: watches programs, ends
what is left, removes folders.

    main() with sys.argv[1] = SupervisorSettings as JSON

It is a subreaper: whatever a program starts stays below it, in whatever session and whoever of its
parents has ended. It looks at what each program takes (resource_usage.py), sooner where it could
soon be too much, answers what the programs' filters ask (gate.py), and tells their owner of both,
by the connection that each program has. Memory is looked at by one thread and files by another, so
that many files do not hide what is taken of memory meanwhile. When its owner shuts the control
socket down or ends, in whatever way, everything below it is ended and the folder of all fresh
workspaces removed. Outside of bubblewrap, whose end nobody inside could survive. Standard library
only, as in fork_server.py.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import NamedTuple, NoReturn, TypedDict, cast

from marl_plugins.sandbox import resource_usage
from marl_plugins.sandbox.fork_server import ENVIRONMENT, ForkSettings, ProgramRequest
from marl_plugins.sandbox.gate import CallGate
from marl_plugins.sandbox.pool import (
    PATIENCE_SECONDS,
    become_subreaper,
    descendants,
    kill,
    reaped,
    receive,
    tell,
)
from marl_plugins.sandbox.removal import remove

LOOK_SECONDS, SOONEST_SECONDS = 0.1, 0.005
"""Seconds between two looks at what a program takes, at most and at least."""
SHARE, SHARE_NEAR = 4, 1
"""A pause is at least so many times as long as the look before it; the second where a program is
near a limit."""
MEMORY_BYTES_PER_SECOND, DISK_BYTES_PER_SECOND = 4e9, 2e9
"""Bytes in a second that a core can take; more than was measured."""
NEAR, SPARE = 0.9, 1.05
"""Parts of its limit at which several processes are looked at standing still, and that one may take
that nothing else holds."""
SWITCH_SECONDS = 0.001
"""Seconds after which threads take turns."""
PRIORITY = -10
"""Of who looks at programs, where it may have that."""
CORES = os.cpu_count() or 1


class SupervisorSettings(TypedDict):
    """Settings that a supervisor is started with.

    Args:
        control: The descriptor of the fork server's socket to its owner.
        command: What starts the fork server, but for its settings.
        server: These, but for the descriptors and `spared`.
    """

    control: int
    command: list[str]
    server: "ForkSettings"


class WatchedProgram:
    """A program that is watched. As little as possible is done before it runs for a while or asks
    something.

    Args:
        top: A pidfd of the process that is above all of its others.
        connection: To its owner, who is told what was refused or exceeded.
        listener: The descriptor by which its filter asks, if it has one.
    """

    def __init__(
        self, request: "ProgramRequest", top: int, connection: int, listener: int | None = None
    ):
        self.request = request
        self.top = top
        self.connection = socket.socket(fileno=connection)
        self.listener = listener
        self.held = 0
        """Bytes that the kernel holds for what its processes have opened and mapped."""
        self.shared = 0
        """Bytes of memory that its processes have in common, as far as that was looked at. It takes
        long, so they stand still meanwhile; that happens only where they would otherwise take too
        much."""
        self.seen = False
        """Whether threads look at it."""
        self.ended = threading.Event()
        self.next_look = time.monotonic() + min(
            soonest(NEAR * request["memory"], MEMORY_BYTES_PER_SECOND),
            soonest(request["disk"], DISK_BYTES_PER_SECOND),
        )

    @cached_property
    def pid(self) -> int:
        """The process that is above all others, as it is called here; -1 where it has ended."""
        return resource_usage.pid_of(self.top)

    @cached_property
    def gate(self) -> CallGate:
        """The gate that answers the program's filter."""
        assert self.listener is not None
        return CallGate(
            self.request,
            self.listener,
            self.pid,
            lambda what: tell(self.connection, refused=what),
        )

    def close(self) -> None:
        """Closes the gate after the program has ended: what it has left gets no answer."""
        self.ended.set()
        self.connection.close()
        os.close(self.top)
        if self.listener is not None:
            os.close(self.listener)


def main() -> None:
    """Runs the supervisor."""
    settings: SupervisorSettings = json.loads(sys.argv[1])
    become_subreaper()
    owner = os.pidfd_open(os.getppid())
    server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        theirs.set_inheritable(True)
        descriptors = {"control": settings["control"], "supervisor": theirs.fileno()}
        spared = {"spared": [os.getpid(), os.getppid()]}
        command = [
            *settings["command"],
            json.dumps({**settings["server"], **descriptors, **spared}),
        ]
        os.posix_spawn(command[0], command, ENVIRONMENT, setsid=True)
    threading.excepthook = fail
    sys.setswitchinterval(SWITCH_SECONDS)
    Supervisor(settings["control"], server, owner).serve()
    end_descendants()
    remove(settings["server"]["root"])


def fail(raised: threading.ExceptHookArgs) -> NoReturn:
    """Ends at once where a thread fails: then the fork server ends its programs, instead of running
    them unwatched."""
    traceback.print_exception(raised.exc_value)
    os._exit(1)


class Supervisor:
    """Watches the programs of one fork server. One thread answers; two look at each program that
    runs for a while."""

    def __init__(self, control: int, server: socket.socket, owner: int):
        self.server = server
        self.watched: dict[int, WatchedProgram] = {}
        """By the two descriptors of each program."""
        self.poll = select.poll()
        self.poll.register(control, select.POLLRDHUP)
        self.poll.register(owner, select.POLLIN)
        self.poll.register(server, select.POLLIN)
        self.ends = {control, owner}

    def serve(self) -> None:
        """Serves until the owner has gone, or the fork server."""
        while True:
            ready = dict(self.poll.poll(self._pause()))
            if self.ends & ready.keys():
                return
            for descriptor, events in ready.items():
                if watched := self.watched.get(descriptor):
                    self._hear_program(watched, descriptor, events)
            if self.server.fileno() in ready and not self._hear_server():
                return
            self._look()

    def _pause(self) -> float | None:
        """Milliseconds until something has to be done unasked."""
        times = [watched.next_look for watched in self.watched.values() if not watched.seen]
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _look(self) -> None:
        """Look at programs whose time has come, in threads, for a look may take long."""
        now = time.monotonic()
        for watched in self.watched.values():
            if not watched.seen and watched.next_look <= now:
                watched.seen = True
                if (
                    watched.pid > 0
                ):  # known here: another program may have its descriptor once it has ended
                    for look in (look_at_memory, look_at_files):
                        threading.Thread(target=watch, args=(watched, look), daemon=True).start()

    def _hear_server(self) -> bool:
        """Note which program is to be watched; whether the fork server is there."""
        message, descriptors = receive(self.server)
        if message is None:
            return False
        watched = WatchedProgram(cast("ProgramRequest", message), *descriptors)
        for descriptor in (watched.top, watched.listener):
            if descriptor is not None:
                self.watched[descriptor] = watched
                self.poll.register(descriptor, select.POLLIN)
        return True

    def _hear_program(self, watched: WatchedProgram, descriptor: int, events: int) -> None:
        """Answer a program's filter, or forget the program, which has ended."""
        if descriptor == watched.listener and events & select.POLLIN:
            return watched.gate.answer()
        self.poll.unregister(descriptor)
        del self.watched[descriptor]
        if descriptor == watched.listener:  # nobody is left who could ask: the program is ending
            return None
        if watched.listener in self.watched:
            self.poll.unregister(watched.listener)
            del self.watched[watched.listener]
        return watched.close()


def watch(watched: WatchedProgram, look: Callable[[WatchedProgram], "ProgramUsage"]) -> None:
    """Looks at a program until it has ended; where it takes too much, tells its owner and ends
    it."""
    with contextlib.suppress(
        PermissionError
    ):  # this thread's: before programs that take what they can
        os.setpriority(os.PRIO_PROCESS, 0, PRIORITY)
    pause = 0.0
    while not watched.ended.wait(pause):
        started = time.monotonic()
        seen = look(watched)
        share = SHARE if seen.pause == LOOK_SECONDS else SHARE_NEAR
        pause = max(seen.pause, share * (time.monotonic() - started - seen.stood_still))
        if seen.exceeded:
            status, reason = seen.exceeded
            tell(watched.connection, exceeded=status, reason=reason)
            send(seen.pids, signal.SIGKILL)
            pause = LOOK_SECONDS


class ProgramUsage(NamedTuple):
    """The usage of a program, as a look at it has shown.

    Args:
        pids: Its processes.
        exceeded: A limit that is exceeded: the status and the reason.
        pause: Seconds until the next look.
        stood_still: Seconds for which its processes did, for this look.
    """

    pids: list[int]
    exceeded: tuple[str, str] | None
    pause: float
    stood_still: float = 0.0


def look_at_memory(watched: WatchedProgram) -> ProgramUsage:
    """Looks at how many processes and threads a program has, and at their memory."""
    request, pids, exceeded, stood_still = (
        watched.request,
        resource_usage.family(watched.pid),
        None,
        0.0,
    )
    processes = resource_usage.living(pids)
    tasks = max(1, sum(one.threads for one in processes))
    most = request["memory"] * (1.0 if len(processes) > 1 else SPARE) + request["base"]
    held = watched.held + sum(one.kernel for one in processes)
    memory = held + sum(one.own for one in processes) - watched.shared
    if memory > NEAR * most and len(processes) > 1:
        began = time.monotonic()
        pids = stop(watched.pid)
        processes = resource_usage.living(pids)
        together = resource_usage.proportional(processes)
        watched.shared = max(0, sum(one.own for one in processes) - together)
        memory = held + together
        if memory <= most:  # else they are ended where they stand
            send(pids, signal.SIGCONT)
        stood_still = time.monotonic() - began
    if tasks > request["processes"]:
        exceeded = "killed", f"more than {request['processes']} processes and threads"
    elif memory > most:
        exceeded = (
            "memory",
            f"its processes took more than {request['memory'] >> 20} MB of memory together",
        )
    return ProgramUsage(
        pids, exceeded, soonest(NEAR * most - memory, MEMORY_BYTES_PER_SECOND, tasks), stood_still
    )


def look_at_files(watched: WatchedProgram) -> ProgramUsage:
    """Looks at a program's files, and at what its processes have opened and mapped."""
    request, pids = watched.request, resource_usage.family(watched.pid)
    processes = resource_usage.living(pids)
    try:
        opened = resource_usage.descriptors(processes)
    except resource_usage.HiddenProcess:
        reason = "one of its processes cannot be looked at, because its program may not be read"
        return ProgramUsage(pids, ("killed", reason), LOOK_SECONDS)
    mapped = resource_usage.mappings(processes)
    watched.held = resource_usage.kernel_bytes(processes, opened, mapped)
    if request["shm"] and processes:
        watched.held += resource_usage.shared_memory(processes[0])
    entries, size = resource_usage.usage(request["folder"])
    disk = size + resource_usage.nameless_bytes(opened, mapped, request["file"])
    exceeded = None
    if mapped.largest > resource_usage.MAPPINGS:
        exceeded = "killed", f"a process with more than {resource_usage.MAPPINGS} mappings"
    elif entries > resource_usage.MAX_WORKSPACE_ENTRIES:
        exceeded = (
            "killed",
            f"more than {resource_usage.MAX_WORKSPACE_ENTRIES} files, or a path that is too long",
        )
    elif disk > request["disk"]:
        exceeded = "killed", f"its files took more than {request['disk'] >> 20} MB"
    in_kernel = soonest(NEAR * request["memory"] - watched.held, MEMORY_BYTES_PER_SECOND, len(pids))
    return ProgramUsage(
        pids,
        exceeded,
        min(in_kernel, soonest(request["disk"] - disk, DISK_BYTES_PER_SECOND, len(pids))),
    )


def stop(top: int) -> list[int]:
    """Makes a process and all below it stand still, and returns which they are."""
    pids: dict[int, None] = {}
    while fresh := [pid for pid in resource_usage.family(top) if pid not in pids]:
        pids |= dict.fromkeys(fresh)
        send(fresh, signal.SIGSTOP)
    return list(pids)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to processes that may have ended."""
    for pid in pids:
        assert pid > 1, "all others would be signalled"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def soonest(room: float, rate: float, tasks: int = CORES) -> float:
    """Returns seconds within which so many processes and threads cannot take more than so many
    bytes, at a rate for each core."""
    return max(SOONEST_SECONDS, min(LOOK_SECONDS, room / (rate * min(tasks, CORES))))


def end_descendants() -> None:
    """Kills all processes below this one, again and again: orphans become children of this one."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until and (left := list(descendants(os.getpid()))):
        for pid in left:
            kill(pid)
        list(reaped())
        time.sleep(0.0005)
