"""The system calls that a program may make: data for the filter (seccomp.py) and for what is
answered by the gate (gate.py).

What is not named here is answered by ENOSYS, as by an older kernel. The list was made from what
pandas, scikit-learn with workers, threads, pools, asyncio, SQLite, archives, numba, polars,
matplotlib, pytest, bash, coreutils, git and gcc call (docs/sandbox.md).
"""

import errno
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

COLUMN = {"x86_64": 0, "aarch64": 1}
FREE = """
read 0 63, write 1 64, close 3 57, close_range 436 436, lseek 8 62, pread64 17 67, pwrite64 18 68,
readv 19 65, writev 20 66, preadv 295 69, pwritev 296 70, preadv2 327 286, pwritev2 328 287,
stat 4 -, fstat 5 80, lstat 6 -, newfstatat 262 79, statx 332 291, access 21 -, faccessat 269 48,
faccessat2 439 439, readlink 89 -, readlinkat 267 78, getdents 78 -, getdents64 217 61,
getcwd 79 17, chdir 80 49, fchdir 81 50, mkdir 83 -, mkdirat 258 34, rmdir 84 -, unlink 87 -,
unlinkat 263 35, rename 82 -, renameat 264 38, renameat2 316 276, link 86 -, linkat 265 37,
symlink 88 -, symlinkat 266 36, ftruncate 77 46, fsync 74 82, fdatasync 75 83, msync 26 227,
fadvise64 221 223, statfs 137 43, fstatfs 138 44, umask 95 166, dup 32 23, dup2 33 -, dup3 292 24,
pipe 22 -, flock 73 32, eventfd 284 -, eventfd2 290 19, epoll_create 213 -, epoll_create1 291 20,
epoll_ctl 233 21, epoll_wait 232 -, epoll_pwait 281 22, epoll_pwait2 441 441, poll 7 -,
ppoll 271 73, select 23 -, pselect6 270 72, timerfd_create 283 85, timerfd_settime 286 86,
timerfd_gettime 287 87, signalfd 282 -, signalfd4 289 74, brk 12 214, munmap 11 215, mremap 25 216,
mprotect 10 226, membarrier 324 283, execve 59 221, execveat 322 281, exit 60 93,
exit_group 231 94, wait4 61 260, waitid 247 95, getpid 39 172, getppid 110 173, gettid 186 178,
getpgid 121 155, getpgrp 111 -, setpgid 109 154, getsid 124 156, setsid 112 157,
set_tid_address 218 96, set_robust_list 273 99, rseq 334 293, arch_prctl 158 -, futex 202 98,
futex_waitv 449 449, restart_syscall 219 128, getuid 102 174, geteuid 107 175, getgid 104 176,
getegid 108 177, getresuid 118 148, getresgid 120 150, getgroups 115 158, capget 125 90,
uname 63 160, sysinfo 99 179, getrandom 318 278, getrusage 98 165, getcpu 309 168,
getrlimit 97 163, setrlimit 160 164, sched_yield 24 124, sched_getaffinity 204 123,
sched_getparam 143 121, sched_getscheduler 145 120, sched_get_priority_max 146 125,
sched_get_priority_min 147 126, sched_rr_get_interval 148 127, sched_getattr 315 275,
getpriority 140 141, nanosleep 35 101, clock_nanosleep 230 115, clock_gettime 228 113,
clock_getres 229 114, gettimeofday 96 169, time 201 -, times 100 153, getitimer 36 102,
setitimer 38 103, alarm 37 -, pause 34 -, timer_create 222 107, timer_settime 223 110,
timer_gettime 224 108, timer_getoverrun 225 109, timer_delete 226 111, rt_sigaction 13 134,
rt_sigprocmask 14 135, rt_sigreturn 15 139, rt_sigpending 127 136, rt_sigsuspend 130 133,
rt_sigtimedwait 128 137, sigaltstack 131 132, shutdown 48 210, getsockname 51 204,
getpeername 52 205, getsockopt 55 209
"""
"""Allowed whatever their arguments are: what they reach is guarded by Landlock, by limits, or is
the process's own. As in all that follows: name and number on x86-64 and on aarch64, which has not
all of the older calls; asm/unistd_64.h, asm-generic/unistd.h."""
SIGNALLING = """
kill 62 129, tkill 200 130, tgkill 234 131, rt_sigqueueinfo 129 138, rt_tgsigqueueinfo 297 240,
pidfd_open 434 434
"""
OF_THEMSELVES = """
prlimit64 302 261, sched_setaffinity 203 122, sched_setscheduler 144 119, sched_setparam 142 118,
sched_setattr 314 274
"""
"""The first argument is a process, or 0 for the process itself."""
CHANGES_OF_MODES = """
chmod 90 -, fchmod 91 52, fchmodat 268 53, fchmodat2 452 452, utime 132 -, utimes 235 -,
futimesat 261 -, utimensat 280 88
"""
"""Answered as if done, where all files of the user's can be named: Landlock does not guard what
they change, and copying a file (`shutil.copy`) would fail without them."""
CHANGES_OF_OWNERS = """
chown 92 -, lchown 94 -, fchown 93 55, fchownat 260 54
"""
OF_ATTRIBUTES = """
setxattr 188 5, lsetxattr 189 6, fsetxattr 190 7, removexattr 197 14, lremovexattr 198 15,
fremovexattr 199 16, getxattr 191 8, lgetxattr 192 9, fgetxattr 193 10, listxattr 194 11,
llistxattr 195 12, flistxattr 196 13
"""
SEEMINGLY_DONE = """
sync 162 81, syncfs 306 267, sync_file_range 277 84, munlock 150 229, munlockall 152 231
"""
HOLDING_MEMORY = """
mlock 149 228, mlock2 325 284, mlockall 151 230, mbind 237 235
"""
CHECKED = """
open 2 -, openat 257 56, creat 85 -, truncate 76 45, pipe2 293 59, fcntl 72 25, ioctl 16 29,
mknod 133 -, mknodat 259 33, mmap 9 222, madvise 28 233, clone 56 220, fork 57 -, vfork 58 -,
prctl 157 167, personality 135 92, setpriority 141 140, pidfd_send_signal 424 424,
socketpair 53 199, sendto 44 206, recvfrom 45 207, fallocate 285 47
"""
"""Each has a rule of its own below."""
REASONS = {
    "programs have no network": """
socket 41 198, connect 42 203, bind 49 200, listen 50 201, accept 43 202, accept4 288 242
""",
    "sockets are for asyncio's own use alone": """
sendmsg 46 211, recvmsg 47 212, sendmmsg 307 269, recvmmsg 299 243, setsockopt 54 208
""",
    "no process sees into another": """
ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271
""",
    "the kernel's tools are not for programs": """
perf_event_open 298 241, bpf 321 280, seccomp 317 277
""",
    "share memory by files in the workspace": """
shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180
""",
    "look at the files again and again": "inotify_init 253 -, inotify_init1 294 26",
    "read and write as usual": "io_uring_setup 425 425",
    "a program cannot make a container": """
mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, unshare 272 97, setns 308 268
""",
    "a program stays its user": """
setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setresuid 117 147,
setresgid 119 149, setgroups 116 159
""",
    "the kernel's keys are not for programs": """
add_key 248 217, keyctl 250 219, request_key 249 218
""",
}
"""Calls that are refused with EPERM, by what is said in the answer of a program that fails: why, or
what to do instead."""


def numbers_of(table: str) -> dict[str, tuple[int, ...]]:
    """Returns the numbers of each call in a table; -1 where there is none."""
    return {
        name: tuple(-1 if number == "-" else int(number) for number in numbers)
        for name, *numbers in (entry.split() for entry in table.split(","))
    }


SIGNALS, OF_ITSELF = numbers_of(SIGNALLING), numbers_of(OF_THEMSELVES)
TOLD = {name: reason for reason, table in REASONS.items() for name in numbers_of(table)}
TABLES = (
    FREE,
    SIGNALLING,
    OF_THEMSELVES,
    CHANGES_OF_MODES,
    CHANGES_OF_OWNERS,
    OF_ATTRIBUTES,
    SEEMINGLY_DONE,
    HOLDING_MEMORY,
    CHECKED,
    *REASONS.values(),
)
NUMBERS = {name: numbers for table in TABLES for name, numbers in numbers_of(table).items()}

ALLOW, ASK = -1, -2
"""What comes of a call: it is made, or the gate is asked; else an error's number, where 0 answers
as if it were done."""
ANY = ()
"""As the values of a check: whether any bit of the mask is set."""
FULL = 0xFFFFFFFF
ABI_TRUNCATE, ABI_SCOPES = 3, 6
"""Versions of Landlock that guard cutting files off, and signals."""
SET_ID = 0o6000

PR_SET_CHILD_SUBREAPER, CLONE_PARENT = 36, 0x8000
THREAD, FORK, VFORK = 0x10F00, 0x11, 0x4111
"""Flags of clone of a thread that shares all (VM, FS, FILES, SIGHAND, THREAD), of a process, and of
one that is about to execute something (VM, VFORK), as the C libraries give them. CLONE_PARENT is in
none: its process would be the fork server's child."""
CLONE_FLAGS = FULL & ~0x17C0000
"""All but those that hide nothing: SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID, DETACHED,
CHILD_SETTID."""
FCNTL = (0, 1, 2, 3, 5, 6, 7, 9, 1027, 1030, 1032)
"""DUPFD, GETFD, SETFD, GETFL, GETLK, SETLK, SETLKW, GETOWN, DUPFD_QUERY, DUPFD_CLOEXEC, GETPIPE_SZ.
Not SETOWN and SETSIG, by which the kernel sends signals; nor leases, nor locks of descriptors,
which belong to no process, nor larger pipes."""
F_SETFL, FASYNC = 4, 0x2000
IOCTL = (0x5401, 0x540F, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGPGRP, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
PRCTL = (1, 2, 3, 15, 16, 21, 23, 29, 30, 37, 38, 39, 42, 0x53564D41)
"""SET_ and GET_PDEATHSIG, GET_DUMPABLE, SET_ and GET_NAME, GET_SECCOMP, CAPBSET_READ, SET_ and
GET_TIMERSLACK, GET_CHILD_SUBREAPER, SET_ and GET_NO_NEW_PRIVS, GET_THP_DISABLE, SET_VMA. Not
SET_DUMPABLE, which would hide a process's files."""
MADVISE = (0, 1, 2, 3, 4, 8, 10, 11, 14, 15, 16, 17, 18, 19, 20, 22, 23, 25)
"""NORMAL, RANDOM, SEQUENTIAL, WILLNEED, DONTNEED, FREE, DONTFORK, DOFORK, HUGEPAGE, NOHUGEPAGE,
DONTDUMP, DODUMP, WIPEONFORK, KEEPONFORK, COLD, POPULATE_READ, POPULATE_WRITE, COLLAPSE."""
MAP_TYPE, MAP_ANONYMOUS, MAP_HUGETLB = 0xF, 0x20, 0x40000
O_TMPFILE = 0x400000
MESSAGE_FLAGS = 0x4000 | 0x40 | 0x100 | 0x20 | 0x2
"""NOSIGNAL, DONTWAIT, WAITALL, TRUNC, PEEK."""
AF_UNIX, AF_INET, AF_INET6, SOCK_STREAM, SOCK_FLAGS = 1, 2, 10, 1, 0x80800
SOCK_NONBLOCK = 0x800
O_NOTIFICATION_PIPE = 0x80


class Check(NamedTuple):
    """A rule for what comes of a call where an argument, masked, has one of these values.

    Args:
        argument: Its number, from 0.
        high: Whether it is the upper half of the argument that is looked at.
    """

    argument: int
    mask: int
    values: tuple[int, ...]
    action: int
    high: bool = False


class Rule:
    """The checks of a call, of which the first that applies decides, and else what comes of it."""

    def __init__(self, *checks: Check, otherwise: int):
        self.checks = checks
        self.otherwise = otherwise


def rules(abi: int, own_namespaces: bool, line: int) -> dict[str, Rule]:
    """Returns what comes of each call; of those that are not in it, ENOSYS.

    Args:
        abi: The version of Landlock, for what it does not guard yet.
        own_namespaces: Whether a program can name neither the machine's processes nor its files.
        line: The descriptor by which a process says that it is ready, before it is the program.
    """
    alike = {
        name: Rule(otherwise=outcome)
        for table, outcome in (
            (FREE, ALLOW),
            (OF_ATTRIBUTES, errno.EOPNOTSUPP),
            (SEEMINGLY_DONE, 0),
            (HOLDING_MEMORY, errno.EPERM),
            (CHANGES_OF_MODES, ALLOW if own_namespaces else 0),
            (CHANGES_OF_OWNERS, ALLOW if own_namespaces else errno.EPERM),
        )
        for name in numbers_of(table)
    }
    told = {name: Rule(otherwise=ASK) for name in TOLD}
    told["sendmsg"] = Rule(Check(0, FULL, (line,), ALLOW), otherwise=ASK)
    told["socket"] = Rule(
        Check(0, FULL, (AF_INET, AF_INET6), ASK),
        Check(0, FULL & ~AF_UNIX, ANY, errno.EPERM),
        Check(
            1, SOCK_NONBLOCK, (0,), ASK
        ),  # else the C library asks for a user's name, and goes on without
        otherwise=errno.EPERM,
    )
    return alike | told | _files(abi, own_namespaces) | _processes(abi, own_namespaces) | _memory()


def sparing(processes: Sequence[int]) -> dict[str, Rule]:
    """Returns the rules that refuse signals to these processes and to everybody, children of the
    parent's, and to stop being a subreaper; other calls may be made.

    They hold mistakes off: a program may find another way.
    """

    def refusing(values: Iterable[int]) -> Rule:
        return Rule(Check(0, FULL, tuple(values), errno.EPERM), otherwise=ALLOW)

    return {
        **dict.fromkeys((*SIGNALS, "prlimit64"), refusing(processes)),
        "kill": refusing([*processes, -1, *(-pid for pid in processes)]),
        "prctl": refusing([PR_SET_CHILD_SUBREAPER]),
        "clone": Rule(Check(0, CLONE_PARENT, ANY, errno.EPERM), otherwise=ALLOW),
    }


def _files(abi: int, own_namespaces: bool) -> dict[str, Rule]:
    """Calls on files and descriptors."""

    def opening(flags: int) -> Rule:
        """`flags` is the number of the argument before the mode. The access mode 3 opens without
        needing a right."""
        cut = (
            [Check(flags, os.O_TRUNC | os.O_ACCMODE, (os.O_TRUNC,), errno.EPERM)]
            if abi < ABI_TRUNCATE
            else []
        )
        return Rule(
            Check(flags, os.O_ACCMODE, (3,), errno.EINVAL),
            Check(flags, O_TMPFILE, ANY, errno.EOPNOTSUPP),
            *cut,
            Check(flags, os.O_CREAT, (0,), ALLOW),
            Check(flags + 1, SET_ID, ANY, errno.EPERM),
            otherwise=ALLOW,
        )

    def no_set_id(mode: int) -> Rule:
        return Rule(Check(mode, SET_ID, ANY, errno.EPERM), otherwise=ALLOW)

    modes = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2} if own_namespaces else {}
    plain = Check(3, FULL & ~MESSAGE_FLAGS, ANY, errno.EPERM)
    to_nobody = (Check(4, FULL, ANY, errno.EPERM), Check(4, FULL, ANY, errno.EPERM, high=True))
    return {
        "open": opening(1),
        "openat": opening(2),
        "creat": no_set_id(1),
        "mknod": no_set_id(1),
        "mknodat": no_set_id(2),
        **{name: no_set_id(argument) for name, argument in modes.items()},
        "fallocate": Rule(otherwise=errno.EOPNOTSUPP),  # it fills a disk at once
        "truncate": Rule(otherwise=ALLOW if abi >= ABI_TRUNCATE else errno.EPERM),
        "fcntl": Rule(
            Check(1, FULL, FCNTL, ALLOW),
            Check(1, FULL & ~F_SETFL, ANY, errno.EINVAL),
            Check(2, FASYNC, ANY, errno.EPERM),
            otherwise=ALLOW,
        ),
        "ioctl": Rule(Check(1, FULL, IOCTL, ALLOW), otherwise=errno.ENOTTY),
        "pipe2": Rule(Check(1, O_NOTIFICATION_PIPE, ANY, errno.EINVAL), otherwise=ALLOW),
        "socketpair": Rule(
            Check(0, FULL & ~AF_UNIX, ANY, errno.EPERM),
            Check(1, FULL & ~SOCK_FLAGS, (SOCK_STREAM,), ASK),
            otherwise=errno.EPERM,
        ),
        "sendto": Rule(plain, *to_nobody, otherwise=ALLOW),
        "recvfrom": Rule(plain, otherwise=ALLOW),
    }


def _processes(abi: int, own_namespaces: bool) -> dict[str, Rule]:
    """Calls that make, signal and change processes."""
    guarded = own_namespaces or abi >= ABI_SCOPES
    signals = {name: Rule(otherwise=ALLOW if guarded else ASK) for name in SIGNALS}
    signals["kill"] = Rule(Check(0, FULL, (0,), ALLOW), otherwise=signals["kill"].otherwise)
    others = ALLOW if own_namespaces else ASK
    return {
        **signals,
        "pidfd_send_signal": Rule(otherwise=ALLOW if guarded else errno.ENOSYS),
        **{name: Rule(Check(0, FULL, (0,), ALLOW), otherwise=others) for name in OF_ITSELF},
        "setpriority": Rule(
            Check(0, FULL, ANY, errno.EPERM), Check(1, FULL, (0,), ALLOW), otherwise=errno.EPERM
        ),
        "clone": Rule(Check(0, CLONE_FLAGS, (FORK, THREAD, VFORK), ASK), otherwise=errno.EPERM),
        **dict.fromkeys(("fork", "vfork"), Rule(otherwise=ASK)),
        "prctl": Rule(Check(0, FULL, PRCTL, ALLOW), otherwise=errno.EINVAL),
        "personality": Rule(Check(0, FULL, (FULL, 0), ALLOW), otherwise=errno.EPERM),
    }


def _memory() -> dict[str, Rule]:
    """Calls on memory. What is shared without a file stays when all but a page of it is unmapped,
    and nothing shows it."""
    shared, validated = 0x1 | MAP_ANONYMOUS, 0x3 | MAP_ANONYMOUS
    return {
        "mmap": Rule(
            Check(3, MAP_HUGETLB, ANY, errno.ENOMEM),
            Check(3, MAP_TYPE | MAP_ANONYMOUS, (shared, validated), ASK),
            Check(3, MAP_TYPE, (1, 2, 3), ALLOW),
            otherwise=errno.EINVAL,
        ),
        "madvise": Rule(Check(2, FULL, MADVISE, ALLOW), otherwise=errno.EINVAL),
    }
