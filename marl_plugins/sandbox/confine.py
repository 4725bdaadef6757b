"""What a process does to itself before it runs an agent's program: limits, capabilities, Landlock, seccomp.

By the C library alone and without exec. Of Linux's man pages: landlock(7), seccomp(2), capabilities(7), prctl(2), setrlimit(2).
Everything here can only be tightened afterwards, by the program too, and is inherited by whatever it starts.
"""

import contextlib
import ctypes
import errno
import os
import platform
import resource
import stat
import struct
from collections.abc import Iterable, Sequence

libc = ctypes.CDLL(None, use_errno=True)

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER = 1, 22, 24, 36
PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, SECCOMP_MODE_FILTER = 38, 47, 4, 2
SECCOMP_GET_ACTION_AVAIL = 2
CLONE_NEWNS, CLONE_NEWPID = 0x20000, 0x20000000
CLONE_NEW = 0x7E020080
"""All flags of clone that make a namespace."""
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 2, 4, 8, 1 << 12, 1 << 13, 1 << 14, 1 << 18
STAGE = "/mnt"
"""An empty folder in bubblewrap's root."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # alike on every architecture
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
MAKE_CHAR, MAKE_BLOCK, REFER, TRUNCATE, IOCTL_DEV = 1 << 6, 1 << 11, 1 << 13, 1 << 14, 1 << 15
ABI_TRUNCATE, ABI_TCP, ABI_SCOPES = 3, 4, 6
OPEN_FLAGS = os.O_TRUNC | os.O_ACCMODE
SET_ID = stat.S_ISUID | stat.S_ISGID
FIRST_UID = 0x70000000
"""Users of programs where the sandbox is root's: a range that systemd's table of user ids calls unused, one for each slot."""

COLUMN = {"x86_64": 0, "aarch64": 1}
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NUMBERS = {
    **{"socket": (41, 198), "ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{"kexec_load": (246, 104), "kexec_file_load": (320, 294), "bpf": (321, 280), "perf_event_open": (298, 241)},
    **{"userfaultfd": (323, 282), "io_uring_setup": (425, 425), "io_uring_enter": (426, 426)},
    **{"io_uring_register": (427, 427), "keyctl": (250, 219), "add_key": (248, 217), "request_key": (249, 218)},
    **{"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "setns": (308, 268)},
    **{"unshare": (272, 97), "init_module": (175, 105), "finit_module": (313, 273), "delete_module": (176, 106)},
    **{"reboot": (169, 142), "swapon": (167, 224), "swapoff": (168, 225), "open_by_handle_at": (304, 265)},
    **{"name_to_handle_at": (303, 264), "move_mount": (429, 429), "open_tree": (428, 428), "fsopen": (430, 430)},
    **{"fsconfig": (431, 431), "fsmount": (432, 432), "fspick": (433, 433), "mount_setattr": (442, 442)},
    **{"pidfd_getfd": (438, 438), "kcmp": (312, 272), "acct": (163, 89), "syslog": (103, 116), "quotactl": (179, 60)},
    **{"quotactl_fd": (443, 443), "fanotify_init": (300, 262), "clone": (56, 220), "clone3": (435, 435)},
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447), "shmget": (29, 194), "semget": (64, 190)},
    **{"msgget": (68, 186), "mq_open": (240, 180), "prctl": (157, 167), "setuid": (105, 146), "setgid": (106, 144)},
    **{"setreuid": (113, 145), "setregid": (114, 143), "setresuid": (117, 147), "setresgid": (119, 149)},
    **{"setgroups": (116, 159), "setfsuid": (122, 151), "setfsgid": (123, 152), "kill": (62, 129), "tkill": (200, 130)},
    **{"tgkill": (234, 131), "rt_sigqueueinfo": (129, 138), "rt_tgsigqueueinfo": (297, 240), "pidfd_open": (434, 434)},
    **{"pidfd_send_signal": (424, 424), "prlimit64": (302, 261), "fchmod": (91, 52), "fchmodat": (268, 53)},
    **{"fchmodat2": (452, 452), "mknodat": (259, 33), "openat": (257, 56), "openat2": (437, 437), "truncate": (76, 45)},
    **{"sched_setaffinity": (203, 122), "sched_setscheduler": (144, 119), "sched_setparam": (142, 118)},
    **{"sched_setattr": (314, 274), "setpriority": (141, 140), "ioprio_set": (251, 30), "inotify_add_watch": (254, 27)},
    **{"fchown": (93, 55), "fchownat": (260, 54), "utimensat": (280, 88), "setxattr": (188, 5), "lsetxattr": (189, 6)},
    **{"fsetxattr": (190, 7), "removexattr": (197, 14), "lremovexattr": (198, 15), "fremovexattr": (199, 16)},
    **{"setxattrat": (463, 463), "removexattrat": (466, 466), "file_setattr": (469, 469)},
    **{"chmod": (90, -1), "mknod": (133, -1), "open": (2, -1), "chown": (92, -1), "lchown": (94, -1), "utime": (132, -1)},
    **{"utimes": (235, -1), "futimesat": (261, -1)},  # x86-64 only, as the line above
}
"""Numbers of system calls, on x86-64 and on aarch64."""

REFUSED = (
    *("socket", "ptrace", "process_vm_readv", "process_vm_writev", "kexec_load", "kexec_file_load", "bpf"),
    *("perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key"),
    *("request_key", "mount", "umount2", "pivot_root", "chroot", "setns", "unshare", "init_module", "finit_module"),
    *("delete_module", "reboot", "swapon", "swapoff", "open_by_handle_at", "name_to_handle_at", "move_mount"),
    *("open_tree", "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "pidfd_getfd", "kcmp", "acct", "syslog"),
    *("quotactl", "quotactl_fd", "fanotify_init", "memfd_secret", "shmget", "semget", "msgget", "mq_open", "setuid"),
    *("setgid", "setreuid", "setregid", "setresuid", "setresgid", "setgroups", "setfsuid", "setfsgid", "setpriority"),
    *("ioprio_set", "inotify_add_watch"),
)
"""Answered by EPERM. `socket`: Landlock guards no UDP, no raw sockets and no Unix sockets with a path."""
MISSING = ("clone3", "memfd_create", "openat2")
"""Answered by ENOSYS, so that callers take their older way: a filter cannot read what a pointer leads to (clone3, openat2),
and memory behind memfd_create belongs to no process."""
MODES = ("chmod", "fchmod", "fchmodat", "fchmodat2", "utime", "utimes", "futimesat", "utimensat")
"""Answered as if done, where all files of the user's can be named: Landlock does not guard what they change, and copying a file
(`shutil.copy`) would fail without them."""
ATTRIBUTES = (
    *("chown", "lchown", "fchown", "fchownat", "setxattr", "lsetxattr", "fsetxattr", "setxattrat", "removexattr"),
    *("lremovexattr", "fremovexattr", "removexattrat", "file_setattr"),
)
"""Refused there for the same reason."""
OF_ITSELF = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
"""Allowed for the process itself: the first argument is a process, or 0."""
SIGNALS = ("kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_open")


def check(result: int, what: str) -> int:
    """The result of a call to the C library.

    Raises:
        OSError: It failed.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def landlock_abi() -> int:
    """Which version of Landlock the kernel has.

    Raises:
        OSError: None; `errno` says why: ENOSYS, EOPNOTSUPP (turned off at boot), EPERM (refused by whoever runs this container).
    """
    return check(libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), 1), "landlock_create_ruleset")


def landlock(read: Iterable[str], write: Iterable[str], devices: Iterable[str], abi: int) -> None:
    """Reading is allowed below `read` alone, everything below `write`; no TCP, and no signals or abstract sockets to others.

    Args:
        devices: Files that may be read and written.
        abi: What of it the kernel can: TCP from 4 on, signals and sockets from 6 on.
    """
    files = (1 << 13) - 1
    for needed, right in ((2, REFER), (3, TRUNCATE), (5, IOCTL_DEV)):
        files |= right if abi >= needed else 0
    handled = struct.pack("QQQ", files, 3 if abi >= ABI_TCP else 0, 3 if abi >= ABI_SCOPES else 0)
    size = 24 if abi >= ABI_SCOPES else 16 if abi >= ABI_TCP else 8
    ruleset = check(libc.syscall(CREATE_RULESET, handled, ctypes.c_size_t(size), 0), "landlock_create_ruleset")

    def allow(path: str, rights: int) -> None:
        try:
            found = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            rights &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE
        rule = struct.pack("=Qi", rights & files, found)
        check(libc.syscall(ADD_RULE, ruleset, 1, rule, 0), f"landlock_add_rule {path}")
        os.close(found)

    for path in read:
        allow(path, EXECUTE | READ_FILE | READ_DIR)
    for path in devices:
        allow(path, READ_FILE | WRITE_FILE)
    for path in write:
        allow(path, files & ~(MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV))
    no_new_privileges()
    check(libc.syscall(RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


class Filter:
    """A seccomp filter: what is not refused is allowed. `refuse` adds a rule, `install` makes it the process's own."""

    LOAD, EQUAL, ANY, AND, ATLEAST, RETURN = 0x20, 0x15, 0x45, 0x54, 0x35, 0x06
    ALLOW, ERROR, KILL = 0x7FFF0000, 0x00050000, 0x80000000

    def __init__(self) -> None:
        machine = platform.machine()
        self.column = COLUMN[machine]
        self.code = b""
        self._add((self.LOAD, 0, 0, 4), (self.EQUAL, 1, 0, AUDIT_ARCH[machine]), (self.RETURN, 0, 0, self.KILL))
        self._add((self.LOAD, 0, 0, 0))
        if machine == "x86_64":  # calls of x32
            self._add((self.ATLEAST, 0, 1, 0x40000000), (self.RETURN, 0, 0, self.ERROR | errno.ENOSYS))

    def refuse(self, call: str, error: int = errno.EPERM) -> None:
        """Refuse a system call."""
        self._rule(call, (), error)

    def refuse_any(self, call: str, argument: int, bits: int) -> None:
        """Refuse it where an argument has one of these bits."""
        self._rule(call, [(self.LOAD, 0, 0, 16 + 8 * argument), (self.ANY, 0, 1, bits)])

    def refuse_flags(self, call: str, argument: int, mask: int, value: int) -> None:
        """Refuse it where an argument, masked, has this value."""
        loaded = [(self.LOAD, 0, 0, 16 + 8 * argument), (self.AND, 0, 0, mask)]
        self._rule(call, [*loaded, (self.EQUAL, 0, 1, value & 0xFFFFFFFF)])

    def refuse_values(self, call: str, argument: int, values: Iterable[int]) -> None:
        """Refuse it where an argument has one of these values."""
        for value in values:
            self._rule(call, [(self.LOAD, 0, 0, 16 + 8 * argument), (self.EQUAL, 0, 1, value & 0xFFFFFFFF)])

    def refuse_others(self, call: str, argument: int, values: Sequence[int]) -> None:
        """Refuse it unless an argument has one of these values."""
        last = len(values) - 1
        tests = [(self.EQUAL, last - n + 1, 0, value & 0xFFFFFFFF) for n, value in enumerate(values)]
        self._rule(call, [(self.LOAD, 0, 0, 16 + 8 * argument), *tests])

    def install(self) -> None:
        """Apply it to this process and to all that it starts."""
        self._add((self.RETURN, 0, 0, self.ALLOW))
        code = ctypes.create_string_buffer(self.code, len(self.code))
        program = struct.pack("HxxxxxxP", len(self.code) // 8, ctypes.addressof(code))
        no_new_privileges()
        check(libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), "seccomp")

    def _rule(self, call: str, tests: Sequence[tuple[int, int, int, int]], error: int = errno.EPERM) -> None:
        number = NUMBERS[call][self.column]
        if number < 0:
            return
        refused = [*tests, (self.RETURN, 0, 0, self.ERROR | error)]
        again = [(self.LOAD, 0, 0, 0)] if tests else []  # the tests have loaded an argument in the number's place
        self._add((self.EQUAL, 0, len(refused) + len(again), number), *refused, *again)

    def _add(self, *instructions: tuple[int, int, int, int]) -> None:
        self.code += b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def seccomp(abi: int, own_namespaces: bool) -> None:
    """Refuse what Landlock does not guard, and what its version `abi` cannot yet.

    Args:
        own_namespaces: Whether it can name neither the machine's processes nor its files.
    """
    rules = Filter()
    for call in REFUSED:
        rules.refuse(call)
    for call in MISSING:
        rules.refuse(call, errno.ENOSYS)
    rules.refuse_any("clone", 0, CLONE_NEW)
    rules.refuse_values("prctl", 0, [PR_SET_CHILD_SUBREAPER])
    for call, argument in (("chmod", 1), ("fchmod", 1), ("fchmodat", 2), ("fchmodat2", 2), ("mknod", 1), ("mknodat", 2)):
        rules.refuse_any(call, argument, SET_ID)
    for call in OF_ITSELF:
        rules.refuse_others(call, 0, [0, os.getpid()])
    for call in () if own_namespaces else MODES:
        rules.refuse(call, 0)
    for call in () if own_namespaces else ATTRIBUTES:
        rules.refuse(call)
    if abi < ABI_SCOPES and not own_namespaces:  # no signals but to itself and its own group
        for call in SIGNALS:
            rules.refuse_others(call, 0, [os.getpid(), 0] if call == "kill" else [os.getpid()])
    if abi < ABI_TRUNCATE:  # what is opened to be read can be cut off too
        rules.refuse("truncate")
        rules.refuse_flags("open", 1, OPEN_FLAGS, os.O_TRUNC)
        rules.refuse_flags("openat", 2, OPEN_FLAGS, os.O_TRUNC)
    rules.install()


def spare(processes: Sequence[int]) -> None:
    """Refuse signals to these processes and to everybody, against mistakes: a program may still find another way."""
    rules = Filter()
    for call in (*SIGNALS, "prlimit64"):
        rules.refuse_values(call, 0, processes)
    rules.refuse_values("kill", 0, [-1, *(-pid for pid in processes)])
    rules.refuse_values("prctl", 0, [PR_SET_CHILD_SUBREAPER])
    rules.install()


def can_filter() -> bool:
    """Whether the kernel has seccomp filters, and this module the numbers of its system calls."""
    number = {"x86_64": 317, "aarch64": 277}.get(platform.machine())
    action = struct.pack("=I", Filter.ERROR)
    return number is not None and libc.syscall(number, SECCOMP_GET_ACTION_AVAIL, 0, action) == 0


def no_new_privileges() -> None:
    """From now on, no file gives a process more rights than its parent had."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")


def drop_capabilities() -> None:
    """No capability in any set."""
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) < 0:  # there are no more, or it has none to drop them with
            break
    libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = struct.pack("=Ii", 0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
    check(libc.capset(header, bytes(24)), "capset")


def become(user: int, folder: str) -> None:
    """Root becomes a user who has nothing but a folder, which is given to it with all that is in it."""
    waiting = [folder]
    os.chown(folder, user, user)
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except OSError:  # too deep for a path
            continue
        for entry in entries:
            with contextlib.suppress(OSError):  # too deep as well: it stays another user's
                found = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(found.st_mode):
                    waiting.append(entry.path)
                elif found.st_nlink > 1:  # it may be a file of somebody else's
                    continue
                if found.st_uid != user:
                    os.chown(entry.path, user, user, follow_symlinks=False)
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def limit(memory: int, seconds: int, file: int, processes: int | None) -> None:
    """Limits of each process; what is mapped already is not the program's.

    Args:
        memory, file: In bytes.
        processes: Of the user; None where the user has others.
    """
    with open("/proc/self/statm", "rb") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + memory,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file, file))
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if processes is not None:
        resource.setrlimit(resource.RLIMIT_NPROC, (processes, processes))


def private_mounts(folder: str, hidden: Iterable[str], memory: int) -> None:
    """A mount namespace of its own, with /proc of its own pid namespace, and an empty /dev/shm.

    Args:
        folder: What alone is left of the `hidden` folders.
        memory: Size of /dev/shm, in bytes.
    """
    check(libc.unshare(CLONE_NEWNS), "unshare")
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("tmpfs", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={memory},nr_inodes=1000")
    mount(folder, STAGE, "", MS_BIND)
    for path in hidden:
        mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, "size=4096,nr_inodes=100")
    os.makedirs(folder)
    mount(STAGE, folder, "", MS_MOVE)


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2).

    Raises:
        OSError: It is refused.
    """
    check(libc.mount(*(word.encode() for word in (source, target, kind)), flags, options.encode()), f"mount {target}")
