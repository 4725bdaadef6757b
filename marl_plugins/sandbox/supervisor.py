"""Stands above a fork server (fork_server.py) and all that it has started: watches programs, ends what is left, removes folders.

    main() with sys.argv[1] = Settings as JSON

It is a subreaper: whatever a program starts stays below it, in whatever session and whoever of its parents has ended. When its
owner closes the socket or ends, in whatever way, everything below it is ended and the folder of all fresh workspaces removed.
Outside of bubblewrap, whose end nobody inside could survive. Standard library only, as in fork_server.py.
"""

import contextlib
import errno
import itertools
import json
import os
import queue
import resource
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, TypedDict, cast

if TYPE_CHECKING or __package__:
    from marl_plugins.sandbox import confine
    from marl_plugins.sandbox.fork_server import Request, children_of, receive, tell
else:
    import confine
    from fork_server import children_of, receive, tell

LOOK = 0.1
"""Seconds between two looks at a program's memory, processes and files; more where a look takes long."""
ENTRIES = 10_000
"""Maximum number of files and folders in a workspace."""
BEYOND: dict[int | None, int] = {errno.ENAMETOOLONG: ENTRIES + 1}
"""What counts as more than all of them, because what lies there cannot be counted."""
PATIENCE = 5.0
"""Seconds after which a process that cannot be ended is left."""


class Settings(TypedDict):
    """What a supervisor is started with.

    Args:
        control, server: Descriptors: its own socket, and what only the fork server needs.
        command: What starts the fork server; its last word is the fork server's settings, to be completed.
        root: Folder of the fresh workspaces, removed at the end.
        environment: Of the fork server.
    """

    control: int
    server: int
    command: list[str]
    root: str
    environment: dict[str, str]


class Watched:
    """A program that is watched.

    Args:
        top: A pidfd of the process that is above all of its others.
    """

    def __init__(self, request: "Request", top: int):
        self.request = request
        self.top = top
        self.next_look = time.monotonic()


def main() -> None:
    """The supervisor."""
    settings: Settings = json.loads(sys.argv[1])
    confine.libc.prctl(confine.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    owner = os.pidfd_open(os.getppid())
    control = socket.socket(fileno=settings["control"])
    control.set_inheritable(False)
    server, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.set_inheritable(theirs.fileno(), True)
    *command, given = settings["command"]
    given = json.dumps(json.loads(given) | {"supervisor": theirs.fileno(), "spared": [os.getpid(), os.getppid()]})
    os.posix_spawn(command[0], [*command, given], settings["environment"], setsid=True)
    theirs.close()
    os.close(settings["server"])
    supervisor = Supervisor(control, server, owner)
    supervisor.serve()
    end_descendants()
    supervisor.removed()
    remove(settings["root"])


class Supervisor:
    """Watches the programs of one fork server."""

    def __init__(self, control: socket.socket, server: socket.socket, owner: int):
        self.control = control
        self.server = server
        self.owner = owner
        self.watched: dict[int, Watched] = {}
        self.unwanted: queue.Queue[str | None] = queue.Queue()
        self.removing = threading.Thread(target=self._remove_unwanted, daemon=True)
        self.removing.start()

    def serve(self) -> None:
        """Until the owner has gone, or the fork server."""
        poll = select.poll()
        for waiting in (self.control.fileno(), self.server.fileno(), self.owner):
            poll.register(waiting, select.POLLIN)
        while True:
            pause = min((w.next_look for w in self.watched.values()), default=None)
            ready = [f for f, _ in poll.poll(None if pause is None else max(0.0, pause - time.monotonic()) * 1000 + 1)]
            if self.owner in ready:
                return
            if self.control.fileno() in ready:
                wanted, _ = receive(self.control)
                if wanted is None:
                    return
                self.unwanted.put(wanted["remove"])
            if self.server.fileno() in ready and not self._hear_server():
                return
            for watched in list(self.watched.values()):
                if time.monotonic() >= watched.next_look:
                    self._look(watched)

    def _hear_server(self) -> bool:
        """Note which programs are to be watched; whether the fork server is there."""
        message, descriptors = receive(self.server)
        if message is None:
            return False
        if "forget" in message:
            if watched := self.watched.pop(message["forget"], None):
                os.close(watched.top)
        else:
            self.watched[message["run"]] = Watched(cast("Request", message), descriptors[0])
        return True

    def _look(self, watched: Watched) -> None:
        """Tell the fork server where a program takes too much."""
        started = time.monotonic()
        found = self._exceeded(watched)
        watched.next_look = time.monotonic() + max(LOOK, 10 * (time.monotonic() - started))
        if found:
            status, reason = found
            tell(self.server, run=watched.request["run"], status=status, reason=reason)

    def _exceeded(self, watched: Watched) -> tuple[str, str] | None:
        """Which limit a program's processes exceed together: the status and the reason; None where none."""
        request, top = watched.request, pid_of(watched.top)
        if top <= 0:
            return None
        processes = [top, *descendants(top)]
        if len(processes) > request["processes"]:
            return "killed", f"more than {request['processes']} processes"
        most = request["memory"] + request["base"]
        if len(processes) > 1 and all(sum(map(measure, processes)) > most for measure in (resident, proportional)):
            return "memory", f"its processes took more than {request['memory'] >> 20} MB of memory together"
        entries, size = usage(request["folder"])
        size += sum(deleted_files(processes).values())
        if entries > ENTRIES:
            return "killed", f"more than {ENTRIES} files, or a path that is too long"
        return ("killed", f"its files took more than {request['disk'] >> 20} MB") if size > request["disk"] else None

    def removed(self) -> None:
        """Wait until all that was to be removed is."""
        self.unwanted.put(None)
        self.removing.join()

    def _remove_unwanted(self) -> None:
        """In a thread of its own, because it may take seconds."""
        while (folder := self.unwanted.get()) is not None:
            with contextlib.suppress(OSError):  # tried again, with all others, at the end
                remove(folder)
            tell(self.control, removed=folder)


def pid_of(pidfd: int) -> int:
    """A process as it is called here; -1 where it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), -1)


def descendants(top: int) -> Iterator[int]:
    """All processes below one, each before its children: one that is killed now starts no more of them."""
    waiting = [top]
    while waiting:
        for child in children_of(waiting.pop()):
            yield child
            waiting.append(child)


def resident(pid: int) -> int:
    """Bytes of memory of a process; what it shares counts fully."""
    pages = read(f"/proc/{pid}/statm").split()
    return int(pages[1]) * resource.getpagesize() if pages else 0


def proportional(pid: int) -> int:
    """Bytes of memory of a process; what it shares counts in parts. Takes longer."""
    lines = read(f"/proc/{pid}/smaps_rollup").splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(b"Pss:"))


def read(path: str) -> bytes:
    """A file of /proc; empty where its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def deleted_files(processes: list[int]) -> dict[tuple[int, int], int]:
    """Bytes of the files that have no name any more and are still open, memory files among them, each once."""
    found = {}
    for pid in processes:
        try:
            for name in os.listdir(f"/proc/{pid}/fd"):
                link = f"/proc/{pid}/fd/{name}"
                if os.readlink(link).endswith(" (deleted)"):
                    file = os.stat(link)
                    found[file.st_dev, file.st_ino] = file.st_blocks * 512
        except OSError:  # it has ended, or closed the file
            continue
    return found


def usage(folder: str) -> tuple[int, int]:
    """Files and folders in a folder, counted up to the limit, and their bytes; one whose path is too long is beyond the limit."""
    entries = size = 0
    waiting = [folder]
    while waiting and entries <= ENTRIES:
        try:
            with os.scandir(waiting.pop()) as found:
                inside = list(itertools.islice(found, ENTRIES + 1))
        except OSError as error:  # removed or closed by the program, or too deep
            entries += BEYOND.get(error.errno or 0, 0)
            continue
        for entry in inside:
            entries += 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
            except OSError as error:
                entries += BEYOND.get(error.errno or 0, 0)
    return entries, size


def end_descendants() -> None:
    """Kill all processes below this one, again and again: orphans become children of this one."""
    until = time.monotonic() + PATIENCE
    while reap() and time.monotonic() < until:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:  # it has ended
                continue
        time.sleep(0.0005)


def reap() -> bool:
    """Collect what has ended; whether there still are children."""
    try:
        for _ in range(1000):  # new ones may end as fast as they are collected
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
    except ChildProcessError:
        return False
    return True


def remove(path: str) -> None:
    """Remove a folder or a file, if it is there: without recursion, without following links, whatever its rights are.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    folder = open_folder(path)
    try:
        empty(folder)
    finally:
        os.close(folder)
    return os.rmdir(path)


def empty(top: int) -> None:
    """Remove all that is in a folder. Folders move up into it before they are emptied, so that no path gets long."""
    fresh, number = os.urandom(8).hex(), 0
    while entries := list(os.scandir(top)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=top)
                continue
            folder = open_folder(entry.name, top)
            try:
                for inner in list(os.scandir(folder)):
                    if inner.is_dir(follow_symlinks=False):
                        os.close(open_folder(inner.name, folder))  # one that may not be written may not be moved either
                        number += 1
                        os.rename(inner.name, f"{fresh}{number}", src_dir_fd=folder, dst_dir_fd=top)
                    else:
                        os.unlink(inner.name, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(entry.name, dir_fd=top)


def open_folder(path: str, within: int | None = None) -> int:
    """A folder's descriptor, after its owner was given all rights; never that of a folder that a link leads to."""
    found = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        if stat.S_IMODE(os.stat(found).st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=found)
    finally:
        os.close(found)
