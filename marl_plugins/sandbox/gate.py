"""Answers what a program's filter asks (seccomp.py, system_calls.py): who stands above the program
decides while the call waits.

* Another process or thread, or pair of sockets: allowed as long as there are few enough. Those are
  counted that were allowed since the last look at what is there; when they are too many there is
  another look, during which none can be made. What was allowed and may not have been done yet, on a
  busy machine, counts as if it were there. So it is exact.
* Memory that is shared without a file: allowed up to a total, because nothing shows who holds it.
* Signals, where Landlock does not guard them yet: sent by this process, to the program's own
  processes alone.
* What is refused and not usual: noted for the answer, with what to do instead.

Of Linux's man page seccomp_unotify(2). A call may go on only where the decision rests on plain
arguments and on the caller's own process, which another thread cannot change meanwhile. Standard
library only, as in supervisor.py.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Callable

from marl_plugins.sandbox import resource_usage, system_calls
from marl_plugins.sandbox.fork_server import ProgramRequest
from marl_plugins.sandbox.seccomp import machine

NOTIF_RECV, NOTIF_SEND, NOTIF_SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082104
SYNC_WAKE_UP, CONTINUE = 1, 1
QUESTION, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
SOCKET_PAIRS = 64
"""Maximum number of pairs of sockets at the same time, which hold 0.4 MB each when they are
full."""
SHARED_MEMORY_PART = 8
"""Part of a program's memory that it may share without a file: one eighth."""
IN_FLIGHT_SECONDS, IN_FLIGHT_TICKS = 0.1, 3
"""Seconds after which a call that was allowed is made if its caller sleeps, and else ticks of its
caller's time."""
SIGNALS = frozenset(system_calls.SIGNALS)
TASKS = frozenset(("clone", "fork", "vfork"))
NAMES = {
    numbers[system_calls.COLUMN[machine()]]: name for name, numbers in system_calls.NUMBERS.items()
}


class Count:
    """A count of something, with a limit.

    Args:
        most: The limit.
        look: Counts those that are there.
    """

    def __init__(self, most: int, look: Callable[[], int]):
        self.most = most
        self._look = look
        self._number = most  # so that the first one looks
        self._allowed: dict[int, AllowedCall] = {}
        """By caller: who asks again has made the call that was allowed before."""

    def take(self, caller: int) -> bool:
        """Counts one more, and returns whether there is room for it."""
        self._allowed.pop(caller, None)
        if self._number >= self.most:
            self._allowed = {
                task: allowed
                for task, allowed in self._allowed.items()
                if not allowed.is_made(task)
            }
            self._number = self._look() + len(self._allowed)
        if self._number >= self.most:
            return False
        self._number += 1
        self._allowed[caller] = AllowedCall()
        return True


class AllowedCall:
    """A call that was allowed."""

    def __init__(self) -> None:
        self._when = time.monotonic()
        self._ticks: int | None = None
        """Of its caller's time, when that was first looked at."""

    def is_made(self, caller: int) -> bool:
        """Returns whether it is sure that the call has been made, or never will be."""
        if time.monotonic() < self._when + IN_FLIGHT_SECONDS:
            return False
        _, _, after = resource_usage.read(f"/proc/{caller}/stat").rpartition(b")")
        state, *fields = after.split() or [b"X"]
        if (
            state not in b"RD"
        ):  # it sleeps, or has ended; in the call it would wait without that, for a lock
            return True
        ticks = int(fields[10]) + int(fields[11])
        self._ticks = ticks if self._ticks is None else self._ticks
        return ticks >= self._ticks + IN_FLIGHT_TICKS


class CallGate:
    """The questions of one program.

    Args:
        listener: The descriptor on which they come.
        top: The process that is above all of its others.
        note: Told what was refused, in words for the answer.
    """

    def __init__(
        self, request: "ProgramRequest", listener: int, top: int, note: Callable[[str], None]
    ):
        self.listener = listener
        self._top = top
        self._note = note
        self._noted: set[str] = set()
        self._tasks = Count(
            request["processes"], lambda: resource_usage.number_of_tasks(resource_usage.family(top))
        )
        self._pairs = Count(SOCKET_PAIRS, self._look_at_sockets)
        self._shared = request["memory"] // SHARED_MEMORY_PART
        with contextlib.suppress(OSError):  # in Linux 6.6 and later
            fcntl.ioctl(listener, NOTIF_SET_FLAGS, SYNC_WAKE_UP)

    def answer(self) -> None:
        """Answers the next question."""
        question = bytearray(QUESTION.size)
        try:
            fcntl.ioctl(self.listener, NOTIF_RECV, question)
        except OSError:  # who has asked has ended, or was interrupted and asks again
            return
        number, caller, _, call, _, _, *arguments = QUESTION.unpack(question)
        error = self._decide(NAMES.get(call, ""), caller, arguments)
        with contextlib.suppress(OSError):
            fcntl.ioctl(
                self.listener, NOTIF_SEND, ANSWER.pack(number, 0, -error, 0 if error else CONTINUE)
            )

    def _decide(self, call: str, caller: int, arguments: list[int]) -> int:
        """The error that a call is answered with; 0 where it may be made."""
        if call in TASKS:
            return self._allowed(self._tasks, caller, call, "processes and threads", errno.EAGAIN)
        if call == "socketpair":
            return self._allowed(self._pairs, caller, call, "pairs of sockets", errno.EMFILE)
        if call == "mmap":
            self._shared -= arguments[1]
            if self._shared >= 0:
                return 0
            self._shared += arguments[1]
            return self._refuse(
                "mmap of shared memory without a file", "map a file in the workspace", errno.ENOMEM
            )
        target = ctypes.c_int32(arguments[0]).value
        if call in system_calls.OF_ITSELF:
            return 0 if target in (caller, process_of(caller)) else errno.EPERM
        if call in SIGNALS:
            return self._signal(call, caller, target, arguments[1])
        return self._refuse(call, system_calls.TOLD.get(call, "no program may"), errno.EPERM)

    def _allowed(self, count: Count, caller: int, call: str, what: str, error: int) -> int:
        return (
            0
            if count.take(caller)
            else self._refuse(call, f"a program has at most {count.most} {what} at a time", error)
        )

    def _refuse(self, call: str, why: str, error: int) -> int:
        if call not in self._noted:
            self._noted.add(call)
            self._note(f"{call} ({why})")
        return error

    def _signal(self, call: str, caller: int, target: int, number: int) -> int:
        """Signals to the caller's own process it may send itself; those to others are sent from
        here, or refused."""
        own = process_of(caller)
        if target in (caller, own) and target > 0:
            return 0
        members = resource_usage.family(self._top)
        if call == "pidfd_open":  # by which nothing can be sent
            return 0 if target in members else errno.ESRCH
        if call != "kill" or target == -1:
            return errno.EPERM
        chosen = [target] if target > 0 else [pid for pid in members if group_of(pid) == -target]
        sent = [self._send(pid, number) for pid in chosen]
        return min(sent, default=errno.ESRCH)

    def _send(self, pid: int, number: int) -> int:
        """Send a signal to one of the program's processes; the error, if any."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            return error.errno or errno.ESRCH
        try:
            if pid not in resource_usage.family(
                self._top
            ):  # looked at now, while the number is held to be this process's
                return errno.EPERM
            signal.pidfd_send_signal(pidfd, number & 0x7F)
        except OSError as error:
            return error.errno or errno.EPERM
        finally:
            os.close(pidfd)
        return 0

    def _look_at_sockets(self) -> int:
        processes = resource_usage.living(resource_usage.family(self._top))
        return len(resource_usage.descriptors(processes).sockets) // 2


def process_of(task: int) -> int:
    """Returns the process of a thread; 0 where it has ended."""
    lines = resource_usage.read(f"/proc/{task}/status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"Tgid:")), 0)


def group_of(pid: int) -> int:
    """Returns the group of a process; 0 where it has ended."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0
