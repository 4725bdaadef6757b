"""Confines a process, by itself, before it runs an agent's program: limits, capabilities, Landlock,
mounts.

By the C library alone and without exec; system calls are seccomp.py's. Of Linux's man pages:
landlock(7), capabilities(7), prctl(2), setrlimit(2).
Everything here can only be tightened afterwards, by the program too, and is inherited by whatever
it starts.
"""

import contextlib
import ctypes
import os
import resource
import stat
import struct
from collections.abc import Iterable

from marl_plugins.sandbox.kernel import check, libc, no_new_privileges
from marl_plugins.sandbox.run_program import limit_each, tighten
from marl_plugins.sandbox.system_calls import ABI_SCOPES

PR_CAPBSET_DROP, PR_SET_THP_DISABLE, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 24, 41, 47, 4
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = (
    2,
    4,
    8,
    1 << 12,
    1 << 13,
    1 << 14,
    1 << 18,
)
STAGE = "/mnt"
"""An empty folder in bubblewrap's root."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # alike on every architecture
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
ABI_TCP = 4
DEVICES = ("/dev/null",)
FIRST_UID = 0x70000000
"""Users of programs where the sandbox is root's: a range that systemd's table of user ids calls
unused, one for each slot."""
MAX_OPEN_FILES = 256
"""Maximum number of open files of a process."""
MAX_TIMERS = 1024
"""Maximum number of waiting signals and timers of a user."""
FIRST_ENDED = b"1000"
"""The score of what the kernel ends first where memory is short."""


def landlock_abi() -> int:
    """Returns which version of Landlock the kernel has.

    Raises:
        OSError: None; `errno` says why: ENOSYS, EOPNOTSUPP (turned off at boot), EPERM (refused by
            whoever runs this container).
    """
    return check(
        libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock_create_ruleset"
    )


def landlock(read: Iterable[str], write: Iterable[str], abi: int) -> None:
    """Allows reading below `read` alone, writing to devices, and everything below `write`; no TCP,
    and no signals or abstract sockets to others.

    Args:
        abi: What of it the kernel can: TCP from 4 on, signals and sockets from 6 on.
    """
    files = (1 << 13) - 1
    for needed, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        files |= right if abi >= needed else 0
    handled = struct.pack("QQQ", files, 3 if abi >= ABI_TCP else 0, 3 if abi >= ABI_SCOPES else 0)
    size = 24 if abi >= ABI_SCOPES else 16 if abi >= ABI_TCP else 8
    ruleset = check(
        libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(size), 0), "landlock_create_ruleset"
    )

    def allow(path: str, rights: int) -> None:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
        rule = struct.pack("=Qi", rights & files, descriptor)
        check(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(descriptor)

    for path in read:
        allow(path, EXECUTE | READ_FILE | READ_DIR)
    for path in DEVICES:
        allow(path, READ_FILE | WRITE_FILE)
    for path in write:
        allow(path, files & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV))
    no_new_privileges()
    check(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def drop_bounding_set() -> None:
    """Lets no program that this process starts have a capability by its file."""
    for capability in range(64):
        if (
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0
        ):  # there are no more, or it has none to drop them with
            break


def drop_capabilities() -> None:
    """Drops every capability that this process has."""
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    check(libc.capset(header, bytes(24)), "capset")


def become(user: int, folder: str) -> None:
    """Turns root into a user who has nothing but a folder, which is given to it with all that is in
    it."""
    waiting = [folder]
    os.chown(folder, user, user)
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # too deep for a path
            continue
        for entry in entries:
            with contextlib.suppress(OSError):  # too deep as well: it stays another user's
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    waiting.append(entry.path)
                elif status.st_nlink > 1:  # it may be a file of somebody else's
                    continue
                if status.st_uid != user:
                    os.chown(entry.path, user, user, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def offer_itself() -> None:
    """Has the kernel end this process before others where memory is short. From `landlock` on it
    cannot take that back."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "wb", 0) as score:
        score.write(FIRST_ENDED)  # unless /proc is read-only


def no_huge_pages() -> None:
    """Forbids huge pages in what is forked from here: of one that is unmapped but for 4 KB, the
    kernel keeps all and counts 4 KB."""
    libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0)


def limit(memory: int, seconds: int, file: int, processes: int | None) -> None:
    """Sets the limits of each process.

    Args:
        memory, file: In bytes.
        processes: Of the user; None where the user has others.
    """
    limit_each(memory, seconds, file)
    for none in (resource.RLIMIT_RTPRIO, resource.RLIMIT_NICE, resource.RLIMIT_MSGQUEUE):
        tighten(none, 0, 0)
    tighten(resource.RLIMIT_NOFILE, MAX_OPEN_FILES, MAX_OPEN_FILES)
    tighten(resource.RLIMIT_SIGPENDING, MAX_TIMERS, MAX_TIMERS)
    if processes is not None:
        tighten(resource.RLIMIT_NPROC, processes, processes)


def private_mounts(folder: str, hidden: Iterable[str], memory: int) -> None:
    """Enters a mount namespace of its own, with /proc of its own pid namespace, and an empty
    /dev/shm.

    Args:
        folder: What alone is left of the `hidden` folders.
        memory: Size of /dev/shm, in bytes.
    """
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount(
        "tmpfs",
        "/dev/shm",
        "tmpfs",
        MS_NOSUID | MS_NODEV | MS_NOEXEC,
        f"size={memory},nr_inodes=1000",
    )
    mount(folder, STAGE, "", MS_BIND)
    for path in hidden:
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4096,nr_inodes=100")
    os.makedirs(folder)
    mount(STAGE, folder, "", MS_MOVE)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Calls mount(2).

    Raises:
        OSError: It is refused.
    """
    check(
        libc.mount(*(word.encode() for word in (source, target, kind)), flags, options.encode()),
        f"mount {target}",
    )
