"""A program that makes random system calls, with random arguments and with ones that are right, and
what must be as before afterwards.

The program forks for every few calls a process that makes them, because many of them end or block
it. What it made is counted in a file that both have mapped.
"""

import asyncio
import hashlib
import os
import struct
from pathlib import Path

from marl_plugins.sandbox import Limits, Program, ProgramResult, open_sandbox, system_calls
from marl_plugins.sandbox.removal import remove
from marl_plugins.sandbox.seccomp import machine
from marl_plugins.sandbox.section import Level, SandboxConfig

BATCH = 200
"""Calls of one process."""

PROGRAM = """
import ctypes, mmap, os, random, signal, struct, sys, time
seed, wanted, victim, outside = {seed}, {wanted}, {victim}, {outside!r}.encode()
libc = ctypes.CDLL(None)
counter = os.open('made', os.O_RDWR | os.O_CREAT)
os.ftruncate(counter, 4096)
made = mmap.mmap(counter, 4096)
os.close(counter)
buffer = ctypes.create_string_buffer(1 << 16)
address = ctypes.addressof(buffer)
own = ctypes.create_string_buffer(b'name')
there = ctypes.create_string_buffer(outside)
def count(): return struct.unpack('Q', made[:8])[0]
def argument(r):
    kind = r.randrange(13)
    if kind < 3: return r.randrange(12)
    if kind == 3: return r.choice([0, -1, -100, 1 << 31, 1 << 32, 1 << 47, (1 << 63) - 1, 4096, 0x8000, 0x10000000, 0x7e020011])
    if kind == 4: return r.getrandbits(64)
    if kind == 5: return r.getrandbits(r.randrange(1, 33))
    if kind == 6: return victim
    if kind == 7: return -victim
    if kind == 8: return ctypes.addressof(own)
    if kind == 9: return ctypes.addressof(there)
    if kind == 10: return 1 << r.randrange(33)
    if kind == 11: return os.getpid()
    return address + 8 * r.randrange(4096)
RIGHT = {right}
def make(r):
    if r.random() < 0.5:
        number, *arguments = r.choice(RIGHT)
        arguments = [argument(r) if a is None else a() if callable(a) else a for a in arguments]
        if number < 0: number = r.randrange(470)
    else:
        number, arguments = r.randrange(470), [argument(r) for n in range(6)]
    buffer[:64] = bytes(r.choice([0, 1, 2, 255]) for n in range(64)) if r.random() < 0.5 else buffer[:64]
    libc.syscall(ctypes.c_long(number), *[ctypes.c_ulong(a & (1 << 64) - 1) for a in (*arguments, 0, 0, 0, 0, 0, 0)][:6])
def work(first):
    r = random.Random(seed * 1000003 + first)
    for number in range(1, 32):
        if number not in (9, 19): signal.signal(number, signal.SIG_DFL)
    signal.signal(14, lambda *_: None)
    for n in range(first, min(first + {batch}, wanted)):
        made[:8] = struct.pack('Q', n + 1)
        signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
        make(r)
    os._exit(0)
while count() < wanted:
    first = count()
    try:
        child = os.fork()
    except OSError:
        time.sleep(0.01); continue
    if child == 0:
        try: work(first)
        finally: os._exit(1)
    until = time.monotonic() + 0.5
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until and count() == first:
            os.kill(child, 9)
        first, until = (count(), time.monotonic() + 0.5) if count() != first else (first, until)
        time.sleep(0.001)
    for name in os.listdir('.'):  # whatever it has left
        if name != 'made':
            try: os.unlink(name)
            except OSError: pass
print(count())
"""

RIGHT = """[
    (N['kill'], victim, 9), (N['kill'], -victim, 9), (N['kill'], -1, 9), (N['tgkill'], victim, victim, 9), (N['tkill'], victim, 9),
    (N['rt_sigqueueinfo'], victim, 9, None), (N['pidfd_open'], victim, 0), (N['pidfd_send_signal'], None, 9, 0, 0),
    (N['prlimit64'], victim, 7, address, 0), (N['prlimit64'], 0, None, None, None), (N['sched_setaffinity'], victim, 8, address),
    (N['sched_setscheduler'], victim, 5, address), (N['setpriority'], 0, victim, 19), (N['fcntl'], 3, 8, victim),
    (N['fcntl'], None, 10, 9), (N['fcntl'], None, 4, 0x2000), (N['fcntl'], None, None, None), (N['fcntl'], None, 1031, 1 << 20),
    (N['ioctl'], None, 0x8901, address), (N['ioctl'], None, 0x8902, address), (N['ioctl'], None, None, None), (N['ioctl'], 0, 0x5412, address),
    (N['prctl'], 4, 0), (N['prctl'], 36, 0), (N['prctl'], None, None, None, None, None), (N['prctl'], 1, 0),
    (N['clone'], 0x8011, 0, 0, 0, 0), (N['clone'], 0x10000011, 0, 0, 0, 0), (N['clone'], 0x11, 0, 0, 0, 0), (N['clone'], None, 0, 0, 0, 0),
    (N['socket'], 1, 1, 0), (N['socket'], 2, 2, 0), (N['socket'], 16, 3, 0), (N['socketpair'], 1, None, 0, address),
    (N['sendto'], None, address, 100, None, lambda: address, 16), (N['sendmsg'], None, address, None), (N['connect'], None, address, 110),
    (N['setsockopt'], None, 1, 7, address, 4), (N['openat'], -100, ctypes.addressof(there), None, 0o777),
    (N['openat'], -100, ctypes.addressof(there), 0o1003), (N['openat'], -100, ctypes.addressof(own), None, None),
    (N['unlinkat'], -100, ctypes.addressof(there), 0), (N['renameat2'], -100, ctypes.addressof(there), -100, ctypes.addressof(own), 0),
    (N['linkat'], -100, ctypes.addressof(there), -100, ctypes.addressof(own), 0), (N['truncate'], ctypes.addressof(there), 0),
    (N['symlinkat'], ctypes.addressof(there), -100, ctypes.addressof(own)), (N['fchmodat'], -100, ctypes.addressof(there), 0),
    (N['utimensat'], -100, ctypes.addressof(there), 0, 0), (N['setxattr'], ctypes.addressof(there), address, address, 8, 0),
    (N['mmap'], 0, 64 << 20, 3, 0x21, -1, 0), (N['mmap'], 0, 64 << 20, 3, 0x22, -1, 0), (N['mmap'], None, 4096, None, None, None, 0),
    (N['madvise'], None, None, None), (N['ftruncate'], None, None), (N['fallocate'], None, 0, 0, 1 << 30), (N['ptrace'], 16, victim, 0, 0),
    (N['mount'], None, None, None, None, None), (N['unshare'], None), (N['setns'], None, 0), (N['io_uring_setup'], None, None),
    (N['shmget'], None, None, None), (N['epoll_create1'], 0), (N['pipe2'], address, None), (N['dup3'], None, None, 0), (-1, None, None, None),
]"""


NEIGHBOUR = "import time\nfor n in range(10): time.sleep(0.05)\nprint('lived')"
LIMITS = Limits(seconds=60.0, memory_mb=256, disk_mb=256, processes=24)
RUNS = 20_000
"""Maximum number of programs, most of which end themselves."""


async def make_calls(
    level: Level, calls: int, place: Path, victim: int
) -> tuple[int, ProgramResult]:
    """Have programs make so many calls, beside a neighbour; how many were made, and what came of
    the neighbour.

    Args:
        place: A folder with a file `outside/file`; their workspace is made in it.
    """
    workspace = place / "workspaces" / "calls"
    workspace.mkdir(parents=True)
    made = 0
    async with open_sandbox(
        SandboxConfig(isolation=level), concurrency=2, workspaces=workspace.parent
    ) as sandbox:
        neighbour = asyncio.create_task(sandbox.run(Program(NEIGHBOUR, limits=LIMITS)))
        for seed in range(RUNS):
            source = program(seed, calls, victim, place / "outside" / "file")
            counter = struct.pack("Q", made).ljust(4096, b"\0")
            got = await sandbox.run(
                Program(source, files={"made": counter}, wanted=("made",), limits=LIMITS), workspace
            )
            left = got.files.get("made", b"")[:8].ljust(8, b"\0")
            (count,) = struct.unpack("Q", left)  # a call may have changed it
            if (
                got.status == "failed"
            ):  # a call before has made its own folder unusable: no call was made
                remove(str(workspace))
                workspace.mkdir()
                continue
            made = count if made < count <= calls else made + 1
            if made >= calls:
                break
        return made, await neighbour


def program(seed: int, calls: int, victim: int, outside: Path) -> str:
    """The program.

    Args:
        victim: A process that must live.
        outside: A file that must stay as it is.
    """
    numbers = {
        name: found[system_calls.COLUMN[machine()]] for name, found in system_calls.NUMBERS.items()
    }
    text = (
        PROGRAM.replace("{seed}", str(seed))
        .replace("{wanted}", str(calls))
        .replace("{victim}", str(victim))
    )
    text = text.replace("{outside!r}", repr(str(outside))).replace("{batch}", str(BATCH))
    return text.replace("RIGHT = {right}", f"N = {numbers!r}\nRIGHT = {RIGHT}")


def digest(folder: Path) -> str:
    """All that can be seen of a folder's files: names, rights, owners, dates, content."""
    found = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        status = os.lstat(path)
        found.update(
            f"{path} {status.st_mode} {status.st_uid} {status.st_gid} {status.st_mtime_ns} "
            f"{status.st_nlink}".encode()
        )
        found.update(f"{os.listxattr(path, follow_symlinks=False)}".encode())
        if path.is_file():
            found.update(path.read_bytes())
    return found.hexdigest()


def state_of(pid: int) -> tuple[object, ...]:
    """What a process's neighbour could have changed of it: limits, cores, priority, scheduling."""
    limits = Path(f"/proc/{pid}/limits").read_text()
    return (
        limits,
        os.sched_getaffinity(pid),
        os.getpriority(os.PRIO_PROCESS, pid),
        os.sched_getscheduler(pid),
        os.getpgid(pid),
    )
