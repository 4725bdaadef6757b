"""The process that agents' programs are forked from: it has imported what they import, and stays as
it was.

    main() with sys.argv[1] = ForkSettings as JSON

A pool (pool.py), started once by the supervisor (supervisor.py), inside bubblewrap where the level
is `namespaces`. With a request come descriptors (source, standard input, output, errors if apart);
the child that is forked for it confines itself (confine.py), tells the supervisor of itself, says
`begun` to the owner, and then is the program (run_program.py), without exec. `unavailable` says
what failed that is not the program's. The supervisor ends programs that take too much.

Standard library only: this is imported without the package, by a Python that may have no
site-packages.
"""

import errno
import fcntl
import gc
import json
import os
import resource
import site
import socket
import sys
import time
from typing import Any, TypedDict, cast

from marl_plugins.sandbox import confine, seccomp, system_calls
from marl_plugins.sandbox.kernel import check, libc, no_new_privileges
from marl_plugins.sandbox.pool import Pool, become_program, tell
from marl_plugins.sandbox.run_program import BASH, run_program

ENVIRONMENT = {
    "PATH": "/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # of pyarrow, which pandas imports
}
"""Also before the imports: a process with several threads cannot be forked."""
INIT = "/bin/sleep"
"""Process 1 of each program's pid namespace."""


class ForkSettings(TypedDict, total=False):
    """Settings that a fork server is started with.

    Args:
        control, supervisor: Descriptors of the sockets to its owner and its supervisor.
        root: The folder that marks its processes.
        warm_up: A program that is run once, after the imports; empty where there is none.
        abi: The version of Landlock; 0 where it is not used.
        read: Paths that programs may read.
        hidden: Folders of all workspaces, of which a program in namespaces of its own sees only its
            own.
        namespaces: Whether each program has namespaces of its own.
        spared: Processes that programs must not signal.
        user: First of the users that programs become, one for each slot; None where they stay who
            they are.
        filters: Whether there is seccomp.
    """

    control: int
    supervisor: int
    root: str
    imports: list[str]
    warm_up: str
    abi: int
    read: list[str]
    hidden: list[str]
    namespaces: bool
    spared: list[int]
    user: int | None
    filters: bool


class ProgramRequest(TypedDict):
    """A program to be run; memory, file, disk and base in bytes."""

    slot: int
    folder: str
    language: str
    memory: int
    seconds: int
    file: int
    disk: int
    processes: int
    modules: bool
    base: int
    """Memory of the fork server that is no file's, which its programs share."""
    shm: bool
    """Whether it has a /dev/shm of its own."""


def main() -> None:
    """Runs the fork server."""
    settings: ForkSettings = json.loads(sys.argv[1])
    control, supervisor = (
        socket.socket(fileno=settings[which]) for which in ("control", "supervisor")
    )
    for connection in (control, supervisor):
        connection.set_inheritable(False)
    sys.dont_write_bytecode = True
    sys.argv = ["program.py"]
    confine.no_huge_pages()
    if refused := prepare(settings):
        return tell(control, **refused)
    os.environ.clear()  # of what the imports have added
    os.environ.update(ENVIRONMENT, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    confine.drop_bounding_set()
    gc.collect()
    gc.freeze()  # a collection in a program would copy the shared pages
    tell(control, ready=True)
    return ForkServer(settings, control, supervisor).serve(supervisor)


def prepare(settings: ForkSettings) -> dict[str, str]:
    """Imports what programs import, and runs the recipe's own program, so that what it imports late
    and caches is there in every program; returns what is wrong, for the owner, who makes it a
    problem."""
    site.setquit()  # `exit` and `quit`, which a Python without site-packages lacks
    steps = [("imports", name, f"import {name}") for name in settings["imports"]]
    for key, name, source in (*steps, ("warm_up", "the warm-up", settings["warm_up"])):
        got = ""
        try:
            exec(compile(source, key, "exec"), {"__name__": key})
        except BaseException as error:
            after = error.__traceback__ and error.__traceback__.tb_next
            got = f"line {after and after.tb_lineno}: {type(error).__name__}: {error}"
        if len(os.listdir("/proc/self/task")) > 1:
            got = "it starts threads, which do not survive a fork"
        if got:
            return {"key": key, "refused": f"{name}: {got}"}
    return {}


class ForkServer(Pool):
    """Forks programs."""

    def __init__(self, settings: ForkSettings, control: socket.socket, supervisor: socket.socket):
        super().__init__(control)
        self.settings = settings
        with open("/proc/self/statm", "rb") as statm:
            _, resident, of_files, *_ = map(int, statm.read().split())
        self.base = (resident - of_files) * resource.getpagesize()
        self.line = fcntl.fcntl(supervisor.fileno(), fcntl.F_DUPFD_CLOEXEC, confine.MAX_OPEN_FILES)
        """By which each process tells the supervisor of itself: no program can have a descriptor of
        this number."""
        self.filter = b""
        if settings["abi"]:
            self.filter = seccomp.filter_of(
                system_calls.rules(settings["abi"], settings["namespaces"], self.line)
            )
        elif settings["filters"]:
            spared = system_calls.sparing([os.getpid(), *settings["spared"]])
            self.filter = seccomp.filter_of(spared, system_calls.ALLOW)
        self.home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def fork(self) -> tuple[int, int]:
        if not self.settings["namespaces"]:
            return super().fork()
        check(libc.unshare(confine.CLONE_NEWPID), "unshare")  # of the children, until setns
        try:
            init = os.posix_spawn(INIT, ["init", "2147483647"], {})
            pid = os.fork()
        except OSError:
            self._return()
            raise
        if pid:
            self._return()
        return pid, init

    def _return(self) -> None:
        """Returns to the server's own pid namespace."""
        check(libc.setns(self.home, confine.CLONE_NEWPID), "setns")

    def become(
        self, request: dict[str, Any], connection: socket.socket, descriptors: list[int]
    ) -> None:
        program = cast("ProgramRequest", request)
        try:
            if program["language"] == "bash" and not os.access(BASH, os.X_OK):
                raise FileNotFoundError(f"no {BASH}")
            self._confine(program, connection, descriptors[1:])
        except BaseException as error:
            tell(connection, unavailable=f"{type(error).__name__}: {error}")
            return
        run_program(program["language"], descriptors[0], program["modules"])

    def _confine(
        self, request: ProgramRequest, connection: socket.socket, streams: list[int]
    ) -> None:
        """Leaves this process with nothing but the program's rights, and tells the supervisor of
        it."""
        settings, user = self.settings, self.settings["user"]
        confine.offer_itself()
        itself = os.pidfd_open(os.getpid())  # pids differ where the supervisor is
        become_program([*streams, streams[-1]][:3])
        if settings["namespaces"]:
            confine.private_mounts(request["folder"], settings["hidden"], request["memory"] // 4)
        os.environ.update(HOME=request["folder"], TMPDIR=request["folder"])
        os.chdir(request["folder"])
        if user is not None:
            confine.become(user + request["slot"], request["folder"])
        confine.limit(
            request["memory"],
            request["seconds"],
            request["file"],
            None if user is None else request["processes"],
        )
        confine.drop_capabilities()
        told = [itself, connection.fileno()]
        if settings["abi"]:
            own = ["/dev/shm"] if settings["namespaces"] else []
            confine.landlock(settings["read"], [request["folder"], *own], settings["abi"])
            told.append(seccomp.install(self.filter, listened=True))
        elif settings["filters"]:
            seccomp.install(self.filter)
        else:
            no_new_privileges()
        report(self.line, {**request, "base": self.base, "shm": settings["namespaces"]}, told)
        tell(connection, begun=True)


def report(line: int, request: ProgramRequest, descriptors: list[int]) -> None:
    """Tells the supervisor of a program that is about to run, with its process, its connection, and
    the descriptor by which its filter asks."""
    with socket.socket(fileno=line) as supervisor:
        while True:
            try:
                socket.send_fds(supervisor, [json.dumps(request).encode()], descriptors)
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # others are on their way
                    raise
                time.sleep(0.001)
