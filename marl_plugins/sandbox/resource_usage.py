"""Measures what a program and all that it has started take of their machine, read from /proc by
whoever stands above them.

A process is looked at by one of its threads that lives: the first may have ended while others run.
Standard library only, as in supervisor.py.
"""

import contextlib
import errno
import itertools
import os
import platform
import re
import stat
from collections.abc import Iterable
from typing import NamedTuple

from marl_plugins.sandbox.kernel import libc
from marl_plugins.sandbox.pool import descendants
from marl_plugins.sandbox.removal import open_folder

MAX_WORKSPACE_ENTRIES = 10_000
"""Maximum number of files and folders in a workspace."""
MAPPINGS = 10_000
"""Maximum number of mappings of a process."""
BEYOND: dict[int | None, int] = {errno.ENAMETOOLONG: MAX_WORKSPACE_ENTRIES + 1}
"""What counts as more than all of them, because what lies there cannot be counted."""
TASK_BYTES, MAPPING_BYTES, LOCK_BYTES, WATCH_BYTES, PIPE_BYTES, FILE_BYTES = (
    32 << 10,
    512,
    256,
    256,
    64 << 10,
    4 << 10,
)
"""What the kernel holds for a thread, a mapping, a lock on a part of a file, a watched file, a full
pipe, an open descriptor."""
LINK_BYTES = 64
"""What the kernel holds for a mapping that a process has from one above it, once for each that is
between them."""
FEW_LINKS_BYTES = 16 << 20
"""Links are at most half as many as mappings times processes, in a chain where each has started the
next; usually there are few, so that as many bytes of them are not counted."""
FEW_LOCKS = 2_000
"""Locks of the whole machine that are not looked at more closely."""
MAPS_BYTES = 4 << 20
"""A process whose mappings take more in /proc, which has very many or very long names, is not read
to its end."""
DELETED = re.compile(
    rb"^(\S+) \S+ \S+ (\w+):(\w+) (\d+) +(?!/dev/zero ).* \(deleted\)$", re.MULTILINE
)
"""A mapping of a file without a name; /dev/zero is memory that is shared without a file
(gate.py)."""
LOCK = re.compile(rb"^\d+: (?:-> )?POSIX +\S+ +\S+ +(\d+) ", re.MULTILINE)
KCMP = {"x86_64": 312, "aarch64": 272}
KCMP_VM = 1


class LivingProcess(NamedTuple):
    """A process that lives.

    Args:
        task: One of its threads that lives.
        threads: How many it has.
        own: Bytes of its memory that are no file's, also where they are swapped out.
        kernel: Bytes of its page tables, and what its threads take of the kernel.
    """

    pid: int
    task: int
    threads: int
    own: int
    kernel: int

    @property
    def path(self) -> str:
        """Returns the folder of the process in /proc."""
        return f"/proc/{self.task}"


class Descriptors(NamedTuple):
    """The memory and files that the descriptors of processes hold.

    Args:
        number: How many there are.
        watched: How many files are watched at most, by those that may be epolls.
        pipes: Pipes, each once.
        sockets: Sockets, each once.
        nameless: Bytes of the files that have no name any more, by device and inode; also of what
            is executed, and of folders.
    """

    number: int
    watched: int
    pipes: set[int]
    sockets: set[int]
    nameless: dict[tuple[int, int], int]


class HiddenProcess(Exception):
    """A process whose open files cannot be seen."""


def read(path: str, most: int = -1) -> bytes:
    """Returns a file of /proc; empty where its process has ended."""
    try:
        with open(path, "rb") as file:
            return file.read(most)
    except OSError:
        return b""


def family(top: int) -> list[int]:
    """Returns a process and all below it, if none starts another meanwhile; those whose parents end
    while this looks are found too."""
    pids: dict[int, None] = {top: None}
    while True:
        before = len(pids)
        pids |= dict.fromkeys(descendants(top))
        if len(pids) == before:
            return list(pids)


def pid_of(pidfd: int) -> int:
    """Returns a process as it is called here; -1 where it has ended."""
    with open(f"/proc/self/fdinfo/{pidfd}", "rb") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(b"Pid:")), -1)


def process(pid: int) -> LivingProcess | None:
    """Returns a process as it is now; None where it has ended."""
    numbers, task = _numbers(pid), pid
    if "VmRSS" not in numbers:  # its first thread has ended
        try:
            tasks = os.listdir(f"/proc/{pid}/task")
        except OSError:
            return None
        for task in map(int, tasks):
            if "VmRSS" in (numbers := _numbers(task)):
                break
        else:
            return None
    own = numbers.get("RssAnon", numbers["VmRSS"]) + numbers.get("VmSwap", 0)
    threads = numbers.get("Threads", 1)
    return LivingProcess(
        pid, task, threads, own << 10, (numbers.get("VmPTE", 0) << 10) + threads * TASK_BYTES
    )


def living(pids: Iterable[int]) -> list[LivingProcess]:
    """Returns those of these processes that have not ended."""
    return [one for pid in pids if (one := process(pid))]


def _numbers(task: int) -> dict[str, int]:
    """The numbers in a task's status."""
    numbers = {}
    for line in read(f"/proc/{task}/status").decode(errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.startswith(("Vm", "Rss", "Threads")):
            numbers[name] = int(value.split()[0])
    return numbers


def number_of_tasks(pids: Iterable[int]) -> int:
    """Returns the threads of all these processes, of which each has at least one."""
    count = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            count += len(os.listdir(f"/proc/{pid}/task"))
    return count


def descriptors(processes: Iterable[LivingProcess]) -> Descriptors:
    """Returns what the descriptors of these processes hold.

    Raises:
        HiddenProcess: Those of one cannot be seen.
    """
    number, watched, pipes, sockets, nameless = (
        0,
        0,
        set[int](),
        set[int](),
        dict[tuple[int, int], int](),
    )
    for one in processes:
        try:
            names = os.listdir(f"{one.path}/fd")
        except OSError as error:
            if (
                error.errno in (errno.EACCES, errno.EPERM)
                and (now := process(one.pid))
                and now.task == one.task
            ):
                raise HiddenProcess from error
            continue
        number += len(names)
        for name in (
            *(f"fd/{name}" for name in names),
            "exe",
            "cwd",
        ):  # a program stays when nothing of it is mapped
            try:
                file = os.stat(f"{one.path}/{name}")
            except OSError:  # closed meanwhile
                continue
            if stat.S_ISFIFO(file.st_mode):
                pipes.add(file.st_ino)
            elif stat.S_ISSOCK(file.st_mode):
                sockets.add(file.st_ino)
            elif not stat.S_IFMT(
                file.st_mode
            ):  # it has no type: an epoll, or another of the kernel's own
                watched += len(names)
            elif file.st_nlink == 0:
                nameless[file.st_dev, file.st_ino] = file.st_blocks * 512
    return Descriptors(number, watched, pipes, sockets, nameless)


class Mappings(NamedTuple):
    """The memory that processes have mapped.

    Args:
        number: How many there are.
        largest: How many one process has, at most.
        nameless: Files without a name, by device and inode, with where each is mapped.
    """

    number: int
    largest: int
    nameless: dict[tuple[int, int], str]


def mappings(processes: Iterable[LivingProcess]) -> Mappings:
    """Returns what these processes have mapped, up to the first that has more than it may."""
    number = largest = 0
    nameless: dict[tuple[int, int], str] = {}
    for one in processes:
        text = read(f"{one.path}/maps", MAPS_BYTES)
        count = text.count(b"\n") if len(text) < MAPS_BYTES else MAPPINGS + 1
        number, largest = number + count, max(largest, count)
        if largest > MAPPINGS:
            break
        for where, major, minor, inode in DELETED.findall(text) if b" (deleted)\n" in text else ():
            key = os.makedev(int(major, 16), int(minor, 16)), int(inode)
            nameless[key] = f"{one.path}/map_files/{where.decode()}"
    return Mappings(number, largest, nameless)


def nameless_bytes(opened: Descriptors, mapped: Mappings, unseen: int) -> int:
    """Returns bytes of files without a name.

    Args:
        unseen: What one counts that is only mapped, where nobody but root may see how large it is.
    """
    size = sum(opened.nameless.values())
    for file, path in mapped.nameless.items():
        if file not in opened.nameless:
            try:
                size += os.stat(path).st_blocks * 512
            except PermissionError:
                size += unseen
            except OSError:  # no longer mapped
                continue
    return size


def locks_of(pids: set[int]) -> int:
    """Counts how many locks on parts of files these processes hold, as far as the machine has more
    than a few."""
    lines = read("/proc/locks")
    if lines.count(b"\n") <= FEW_LOCKS:
        return 0
    return sum(int(pid) in pids for pid in LOCK.findall(lines))


def proportional(processes: list[LivingProcess]) -> int:
    """Returns bytes of memory of processes that are no file's; what they share counts once. Takes
    longer than `Process.own`."""
    total = 0
    for n, one in enumerate(processes):
        if any(
            _same_memory(one.task, other.task) for other in processes[:n]
        ):  # it is about to execute something
            continue
        sizes = {}
        for line in read(f"{one.path}/smaps_rollup").splitlines():
            name, _, value = line.partition(b":")
            if name in (b"Pss_Anon", b"SwapPss"):
                sizes[name] = int(value.split()[0]) << 10
        total += sum(sizes.values())
    return total


def _same_memory(one: int, other: int) -> bool:
    return bool(libc.syscall(KCMP[platform.machine()], one, other, KCMP_VM, 0, 0) == 0)


def kernel_bytes(processes: list[LivingProcess], opened: Descriptors, mapped: Mappings) -> int:
    """Returns bytes that the kernel holds for what processes have opened, mapped and locked, at
    most; sockets and shared memory are counted where they are made (gate.py)."""
    locks = locks_of({one.pid for one in processes}) * LOCK_BYTES
    held = (
        len(opened.pipes) * PIPE_BYTES + opened.number * FILE_BYTES + opened.watched * WATCH_BYTES
    )
    links = max(0, mapped.number * len(processes) * LINK_BYTES // 2 - FEW_LINKS_BYTES)
    return held + mapped.number * MAPPING_BYTES + links + locks


def usage(folder: str) -> tuple[int, int]:
    """Returns files and folders in a folder, counted up to the limit, and their bytes; one whose
    path is too long is beyond the limit.

    A folder whose rights keep its owner out is given them back.
    """
    entries = size = 0
    waiting = [folder]
    while waiting and entries <= MAX_WORKSPACE_ENTRIES:
        path = waiting.pop()
        try:
            try:
                count, bytes_inside, folders = _inside(path)
            except PermissionError:
                os.close(open_folder(path))
                count, bytes_inside, folders = _inside(path)
        except OSError as error:  # removed by the program, or too deep
            entries += BEYOND.get(error.errno or 0, 0)
            continue
        entries, size = entries + count, size + bytes_inside
        waiting += folders
    return entries, size


def _inside(path: str) -> tuple[int, int, list[str]]:
    """Counts how many files and folders are in one folder, their bytes, and which of them are
    folders.

    Raises:
        OSError: Its owner may not look into it, or it is not there.
    """
    count, size, folders = 0, 0, []
    with os.scandir(path) as entries:
        for entry in itertools.islice(entries, MAX_WORKSPACE_ENTRIES + 1):
            count += 1
            try:
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
            except PermissionError:
                raise
            except OSError as error:
                count += BEYOND.get(error.errno or 0, 0)
    return count, size, folders


def shared_memory(top: LivingProcess) -> int:
    """Returns bytes of files in a program's own /dev/shm."""
    try:
        filesystem = os.statvfs(f"{top.path}/root/dev/shm")
    except OSError:  # it has ended
        return 0
    return (filesystem.f_blocks - filesystem.f_bfree) * filesystem.f_frsize
