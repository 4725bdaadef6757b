"""One call of the `python` tool, in processes of its own: a supervisor and, below it, the program.

    main() with sys.argv[1:] = FOLDER SECONDS MEMORY_MB DISK_MB OUTPUT_CHARS LENGTH

The program, of LENGTH bytes, comes on standard input, which stays open for as long as the caller wants an answer. The answer
is one report on standard output. After that the folder is removed.

The supervisor is a subreaper: whatever the program starts stays below it, in whatever session and whoever of its parents has
ended, so that all of it is found and ended. Every call imports this module, so it imports only what takes no time: `_ctypes`
instead of `ctypes`, and neither `signal` nor `json`.
"""

import _ctypes
import atexit
import os
import resource
import select
import stat
import sys
import time
from _collections_abc import Iterator

FILES, NAMES = 50, 5000
"""Maximum number of files that are reported, and of bytes in their names."""
GRACE = 0.3
"""Seconds for the program's children to end after it."""
LOOK = 0.1
"""Seconds between two looks at memory, processes and files; more where a look takes long."""
PROCESSES, ENTRIES = 256, 10_000
"""Maximum number of processes at the same time, and of files and folders."""
PATIENCE = 5.0
"""Seconds after which a process that cannot be ended is left."""
CHUNK = 65536
LEFT = 3
"""Exit code where the folder could not be removed."""
SIGKILL, SIGCONT = 9, 18
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


class Function(_ctypes.CFuncPtr):
    """A function of the C library."""

    _flags_ = _ctypes.FUNCFLAG_CDECL


def main() -> None:
    """The supervisor."""
    folder, seconds = sys.argv[1], float(sys.argv[2])
    memory_mb, disk_mb, chars, length = map(int, sys.argv[3:])
    program = b""
    while len(program) < length and (chunk := os.read(0, length - len(program))):
        program += chunk
    held = os.open(".", os.O_RDONLY | os.O_DIRECTORY)  # the folder, wherever the program moves it
    prctl = Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl"))  # type: ignore[arg-type]  # None: this process
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    prctl(PR_SET_PDEATHSIG, SIGCONT, 0, 0, 0)  # the program may have stopped its supervisor when the caller ends
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
        run(program, writing, memory_mb << 20, int(seconds) + 1)
    os.close(writing)
    output = HeadAndTail(chars)
    code, stopped = supervise(child, reading, output, seconds, memory_mb, disk_mb)
    end_descendants()
    drain(reading, output)
    report(code, stopped, list_files(held), output.content())
    try:
        moved = os.readlink(f"/proc/self/fd/{held}")  # ends in " (deleted)" where the program has removed it
        for path in {folder, moved}:
            remove(path)
    except OSError:
        os._exit(LEFT)  # the caller tries it too, and says why
    os._exit(0)


def run(program: bytes, output: int, memory: int, seconds: int) -> None:
    """Execute the program as `__main__`, under its limits, and end the process.

    It ends as the interpreter would end it, without visiting every object: that would copy all memory shared since the fork.
    """
    leave = os._exit  # whatever the program makes of `os`
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.closerange(3, 1024)
    for limit, most in (
        (resource.RLIMIT_AS, (memory, memory)),
        (resource.RLIMIT_CPU, (seconds, seconds + 1)),
        (resource.RLIMIT_FSIZE, (memory, memory)),
        (resource.RLIMIT_CORE, (0, 0)),
    ):
        resource.setrlimit(limit, most)
    sys.argv = ["program.py"]
    namespace = {"__name__": "__main__"}
    code = 0
    try:
        exec(compile(program.decode(), "program.py", "exec"), namespace)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        frames = error.__traceback__
        sys.excepthook(type(error), error.with_traceback(frames and frames.tb_next), None)
        code = 1
    try:
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        namespace.clear()  # closes files and thereby writes them
        for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if file is not None and not file.closed:
                file.flush()
    except BaseException:
        code = code or 120  # as the interpreter where the output cannot be written
    leave(code & 0xFF)


def supervise(
    program: int, output: int, kept: "HeadAndTail", seconds: float, memory_mb: int, disk_mb: int
) -> tuple[int, str]:
    """Read the output until the program and its children have ended, or have to be ended; the exit code, and what stopped it."""
    deadline = time.monotonic() + seconds
    look = time.monotonic() + LOOK
    waiting = [0, output]  # standard input can be read once the caller has closed it
    pause = 0.02
    code: int | None = None
    while True:
        readable = select.select(waiting, [], [], pause)[0]
        if 0 in readable:
            return 1, "no longer wanted"
        if output in readable:
            if chunk := os.read(output, CHUNK):
                kept.add(chunk)
            else:  # most programs end right after that
                waiting, pause = [0], 0.0001
        pause = min(2 * pause, 0.02)
        children, ended = reap(program)
        now = time.monotonic()
        if code is None and ended is not None:
            code, deadline = ended, min(deadline, now + GRACE)
        if code is not None and (not children or now >= deadline):
            return code, ""
        if now >= deadline:
            return 1, f"stopped after {seconds:g} s"
        if now >= look:
            if excess := exceeded(memory_mb, disk_mb):
                return 1, f"stopped: {excess}"
            look = time.monotonic() + max(LOOK, 10 * (time.monotonic() - now))


def reap(program: int) -> tuple[bool, int | None]:
    """Whether there still are children, and the program's exit code if it has ended since the last time."""
    code = None
    for _ in range(1000):  # new ones may end as fast as they are reaped
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, code
        if child == 0:
            break
        if child == program:
            code = os.waitstatus_to_exitcode(status)
    return True, code


def exceeded(memory_mb: int, disk_mb: int) -> str:
    """Which limit the program and its children exceed together; empty where none."""
    processes = list(descendants())
    if len(processes) > PROCESSES:
        return f"more than {PROCESSES} processes"
    if len(processes) > 1 and all(sum(map(measure, processes)) > memory_mb << 20 for measure in (resident, proportional)):
        return f"its {len(processes)} processes took more than {memory_mb} MB of memory together"
    entries, size = usage()
    if entries > ENTRIES:
        return f"more than {ENTRIES} files"
    return f"its files took more than {disk_mb} MB" if size > disk_mb << 20 else ""


def descendants() -> Iterator[int]:
    """All processes below this one, each before its children: one that is killed now starts no more of them."""
    waiting = [os.getpid()]
    while waiting:
        for child in children_of(waiting.pop()):
            yield child
            waiting.append(child)


def children_of(pid: int) -> list[int]:
    """The children of a process, whichever of its threads has started them."""
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [int(child) for task in tasks for child in read(f"/proc/{pid}/task/{task}/children").split()]


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


def usage() -> tuple[int, int]:
    """Files and folders in the folder, counted up to the limit, and their bytes; below the longest possible path, none."""
    entries = size = 0
    waiting = ["."]
    while waiting and entries <= ENTRIES:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    size += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    if entries > ENTRIES:
                        break
        except OSError:  # removed or closed by the program, or too deep
            continue
    return entries, size


def end_descendants() -> None:
    """Kill all processes below this one, again and again: orphans become children of this one."""
    until = time.monotonic() + PATIENCE
    while reap(0)[0] and time.monotonic() < until:
        for pid in descendants():
            kill(pid)
        time.sleep(0.0005)


def kill(pid: int) -> None:
    """End a process that may have ended."""
    try:
        os.kill(pid, SIGKILL)
    except OSError:
        return


def drain(output: int, kept: "HeadAndTail") -> None:
    """Read what the ended processes left in the pipe."""
    os.set_blocking(output, False)
    try:
        while chunk := os.read(output, CHUNK):
            kept.add(chunk)
    except BlockingIOError:
        pass


def list_files(folder: int) -> list[bytes]:
    """The first names in the folder, as far as it can be read."""
    found: list[bytes] = []
    try:
        os.fchmod(folder, 0o700)
        os.fchdir(folder)
        names = sorted(os.listdir(b"."))[:FILES]
    except OSError:
        return found
    for name in names:
        if sum(map(len, found)) + len(name) > NAMES:
            break
        found.append(name)
    return found


def report(code: int, stopped: str, files: list[bytes], output: bytes) -> None:
    """Tell the caller the exit code, what stopped the program, the files and the output, each after a zero."""
    message = b"\0".join([b"", b"%d" % code, stopped.encode(), b"%d" % len(files), *files, output])
    try:
        while message:
            message = message[os.write(1, message) :]
    except BrokenPipeError:  # nobody waits for it
        pass
    os.closerange(1, 3)


def sweep(folder: str) -> None:
    """For the caller, where the supervisor was ended itself: end what has the folder as its HOME, and remove it.

    Raises:
        OSError: It cannot be removed.
    """
    mark = f"HOME={folder}".encode()
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        found = [pid for pid in os.listdir("/proc") if pid.isdigit() and mark in read(f"/proc/{pid}/environ").split(b"\0")]
        if not found:
            break
        for pid in found:
            kill(int(pid))
        time.sleep(0.01)
    remove(folder)


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


class HeadAndTail:
    """Keeps the first and the last part of a stream of bytes: tracebacks end at the tail."""

    def __init__(self, limit: int):
        self.limit = limit
        self.head = b""
        self.tail = b""
        self.total = 0

    def add(self, chunk: bytes) -> None:
        self.total += len(chunk)
        half = self.limit // 2
        room = half - len(self.head)
        self.head += chunk[:room]
        self.tail = (self.tail + chunk[max(room, 0) :])[-(self.limit - half) :]

    def content(self) -> bytes:
        left_out = self.total - len(self.head) - len(self.tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out > 0 else b""
        return self.head + middle + self.tail
