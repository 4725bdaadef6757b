"""The process that agents' programs are forked from: it has imported what they import, and stays as
it was.

    main() with sys.argv[1] = Settings as JSON

Started once by the supervisor (supervisor.py), inside bubblewrap where the level is `namespaces`. A
request comes on the socket of its owner with four descriptors (source, standard input, output,
errors); the child that is forked for it confines itself (confine.py) and then is the program,
without exec. Answers are `begun`, `ended` with the exit code, and `unavailable` where something
failed that is not the program's. The supervisor is told of every program by its own process, as the
last thing that this does before it is the program, and says which take too much.

Standard library only: this is imported without the package, by a Python that may have no
site-packages.
"""

import atexit
import contextlib
import errno
import fcntl
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import types
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, cast

if TYPE_CHECKING or __package__:
    from marl_plugins.sandbox import confine, seccomp, system_calls
    from marl_plugins.sandbox.kernel import check, libc, no_new_privileges
    from marl_plugins.sandbox.resource_usage import children_of
else:
    import confine  # beside this file, where there is no package
    import seccomp
    import system_calls
    from kernel import check, libc, no_new_privileges
    from resource_usage import children_of

EXIT_GRACE_SECONDS = 0.3
"""Seconds for a program's children to end after it."""
REAP_MILLISECONDS = 1
"""Milliseconds between two attempts to end what is left of programs."""
LARGEST_MESSAGE_BYTES = 1 << 17
"""Bytes of a message."""
BASH = "/bin/bash"
ENVIRONMENT = {
    **{"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
    **{"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
    **{"JE_ARROW_MALLOC_CONF": "background_thread:false"},  # of pyarrow, which pandas imports
}
"""Also before the imports: a process with several threads cannot be forked."""
TEST_FILE = "test_program.py"
TEST_WORDS = ["-q", "-p", "no:cacheprovider", "--rootdir=.", "--confcutdir=.", TEST_FILE]
"""What pytest is given."""
with open(
    os.path.join(os.path.dirname(os.path.abspath(__file__)), "run_tests.py"), encoding="utf-8"
) as runner:
    TEST_RUNNER = f"{runner.read()}\nmain({TEST_WORDS})\n"


class ForkSettings(TypedDict):
    """Settings that a fork server is started with.

    Args:
        owner, supervisor: Descriptors of the sockets.
        root: The folder that marks its processes.
        warm_up: A program that is run once, after the imports; empty where there is none.
        abi: The version of Landlock; 0 where it is not used.
        read, write, devices: Paths that programs may read; folders that they may change; files that
            they may write.
        hidden: Folders of all workspaces, of which a program in namespaces of its own sees only its
            own.
        init: The program that is process 1 of each pid namespace; empty where there are none.
        spared: Processes that programs must not signal.
        user: First of the users that programs become, one for each slot; None where they stay who
            they are.
        filters: Whether there is seccomp.
    """

    owner: int
    supervisor: int
    root: str
    imports: list[str]
    warm_up: str
    abi: int
    read: list[str]
    write: list[str]
    devices: list[str]
    hidden: list[str]
    init: str
    spared: list[int]
    user: int | None
    filters: bool


class ProgramRequest(TypedDict):
    """A program to be run; memory, file, disk and base in bytes."""

    run: int
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


class RunningProgram:
    """A program that runs."""

    def __init__(self, request: ProgramRequest, pid: int, init: int):
        self.request = request
        self.pid = pid
        self.init = init
        """Process 1 of its pid namespace; 0 where it has none, or once that has ended."""
        self.code: int | None = None


def main() -> None:
    """Runs the fork server."""
    settings: ForkSettings = json.loads(sys.argv[1])
    owner, supervisor = (socket.socket(fileno=settings[which]) for which in ("owner", "supervisor"))
    for connection in (owner, supervisor):
        connection.set_inheritable(False)
    sys.dont_write_bytecode = True
    sys.argv = ["program.py"]
    confine.no_huge_pages()
    if refused := prepare_imports(settings["imports"]) or warm_up(settings["warm_up"]):
        return tell(owner, **refused)
    for name in (
        "confine",
        "fork_server",
        "kernel",
        "removal",
        "seccomp",
        "system_calls",
        "resource_usage",
    ):
        sys.modules.pop(name, None)
    os.environ.clear()  # of what the imports have added
    os.environ.update(ENVIRONMENT, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    confine.drop_bounding_set()
    gc.collect()
    gc.freeze()  # a collection in a program would copy the shared pages
    tell(owner, ready=True)
    return ForkServer(settings, owner, supervisor).serve()


def prepare_imports(names: list[str]) -> dict[str, str]:
    """Imports what programs import, and returns what is wrong with a name, as `_refused` does;
    empty where nothing is."""
    for name in names:
        try:
            __import__(name)
        except BaseException as error:
            return _refused(
                "imports",
                f"{name!r} cannot be imported: {type(error).__name__}: {error}",
                "remove it",
            )
        if has_threads():
            return _refused(
                "imports", f"{name!r} starts threads, which do not survive a fork", "remove it"
            )
    return {}


def _refused(key: str, got: str, fix: str = "") -> dict[str, str]:
    """A message to the owner, who makes it a problem."""
    return {"key": key, "refused": got, "fix": fix}


def warm_up(source: str) -> dict[str, str]:
    """Runs the recipe's own program, so that what it imports late and caches is there in every
    program; returns what is wrong."""
    try:
        exec(compile(source, "warm_up", "exec"), {"__name__": "warm_up"})
    except BaseException as error:
        number = (
            error.__traceback__
            and error.__traceback__.tb_next
            and error.__traceback__.tb_next.tb_lineno
        )
        return _refused("warm_up", f"line {number}: {type(error).__name__}: {error}")
    return (
        _refused("warm_up", "it starts threads, which do not survive a fork")
        if has_threads()
        else {}
    )


def has_threads() -> bool:
    """Returns whether this process has more than one thread."""
    return len(os.listdir("/proc/self/task")) > 1


def tell(connection: socket.socket, **message: Any) -> None:
    """Sends a message; to nobody where the other end is closed."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send(json.dumps(message).encode())


def receive(connection: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """Returns a message with its descriptors; None where the other end is closed, also with
    messages that it has not read."""
    try:
        data, descriptors, _, _ = socket.recv_fds(
            connection, LARGEST_MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC
        )
    except ConnectionResetError:
        return None, []
    return json.loads(data) if data else None, descriptors


class ForkServer:
    """Forks programs, ends them, and says what came of them."""

    def __init__(self, settings: ForkSettings, owner: socket.socket, supervisor: socket.socket):
        self.settings = settings
        self.owner = owner
        self.supervisor = supervisor
        self.programs: dict[int, RunningProgram] = {}
        """By their number."""
        with open("/proc/self/statm", "rb") as statm:
            _, resident, of_files, *_ = map(int, statm.read().split())
        self.base = (resident - of_files) * resource.getpagesize()
        self.line = fcntl.fcntl(supervisor.fileno(), fcntl.F_DUPFD_CLOEXEC, confine.MAX_OPEN_FILES)
        """By which each process tells the supervisor of itself: no program can have a descriptor of
        this number."""
        self.filter = b""
        if settings["abi"]:
            self.filter = seccomp.allowing(
                system_calls.rules(settings["abi"], bool(settings["init"]), self.line)
            )
        elif settings["filters"]:
            self.filter = seccomp.sparing([os.getpid(), *settings["spared"]])
        self.home = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        self.woken, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        libc.prctl(confine.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def serve(self) -> None:
        """Serves until the owner or the supervisor has gone."""
        poll = select.poll()
        for waiting in (self.owner.fileno(), self.supervisor.fileno(), self.woken):
            poll.register(waiting, select.POLLIN)
        while True:
            ready = [descriptor for descriptor, _ in poll.poll(self._pause())]
            if self.woken in ready:
                os.read(self.woken, 4096)
            if self.owner.fileno() in ready and not self._ask_owner():
                break
            if self.supervisor.fileno() in ready and not self._ask_supervisor():
                break
            self._reap()
        for program in self.programs.values():
            self._kill(program)
        until = time.monotonic() + 5
        while self.programs and time.monotonic() < until:
            self._reap()
            time.sleep(0.001)

    def _pause(self) -> int | None:
        """Milliseconds until something has to be done unasked."""
        return (
            REAP_MILLISECONDS
            if any(program.code is not None for program in self.programs.values())
            else None
        )

    def _ask_owner(self) -> bool:
        """Do what the owner wants; whether it is there."""
        message, descriptors = receive(self.owner)
        if message is None:
            return False
        if "end" in message:
            if program := self.programs.get(message["end"]):
                self._kill(program)
            return True
        try:
            self._start(cast("ProgramRequest", message), descriptors)
        except OSError as error:
            tell(
                self.owner,
                unavailable=message["run"],
                reason=f"no process could be started: {error}",
            )
            tell(self.owner, ended=message["run"], code=0)
        for descriptor in descriptors:
            os.close(descriptor)
        return True

    def _ask_supervisor(self) -> bool:
        """End what takes too much; whether the supervisor is there."""
        message, _ = receive(self.supervisor)
        if message is None:
            return False
        if program := self.programs.get(message["run"]):
            tell(
                self.owner,
                exceeded=message["run"],
                status=message["status"],
                reason=message["reason"],
            )
            self._kill(program)
        return True

    def _start(self, request: ProgramRequest, descriptors: list[int]) -> None:
        init = 0
        request["base"], request["shm"] = self.base, bool(self.settings["init"])
        if self.settings["init"]:
            check(libc.unshare(confine.CLONE_NEWPID), "unshare")  # of the children, until setns
        try:
            if self.settings["init"]:
                init = os.posix_spawn(self.settings["init"], ["init", "2147483647"], {})
            pid = os.fork()
        except OSError:
            self._return()
            if init:
                os.kill(init, signal.SIGKILL)
            raise
        if pid == 0:
            become_program(request, descriptors, self)
        self._return()
        self.programs[request["run"]] = RunningProgram(request, pid, init)
        tell(self.owner, begun=request["run"])

    def _return(self) -> None:
        """Returns to the server's own pid namespace."""
        if self.settings["init"]:
            check(libc.setns(self.home, confine.CLONE_NEWPID), "setns")

    def _kill(self, program: RunningProgram) -> None:
        """Begin to end a program: with process 1 its whole pid namespace ends; elsewhere what it
        leaves becomes a child here."""
        if program.init or program.code is None:  # else its number may be another process's by now
            kill(program.init or program.pid)

    def _reap(self) -> None:
        """Collect what has ended, end what ended programs have left, and report the programs of
        which nothing is left."""
        by_pid = {p.pid: p for p in self.programs.values()}
        by_init = {p.init: p for p in self.programs.values() if p.init}
        none = False
        for _ in range(1000):  # new ones may end as fast as they are collected
            try:
                child, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                none = True
                break
            if child == 0:
                break
            if child in by_pid:
                by_pid[child].code = os.waitstatus_to_exitcode(status)
                if by_pid[child].init:
                    kill(by_pid[child].init)
            elif child in by_init:
                by_init[child].init = 0
        if none or self._end_orphans(by_pid.keys() | by_init.keys()):
            for program in [p for p in self.programs.values() if p.code is not None and not p.init]:
                del self.programs[program.request["run"]]
                tell(self.owner, ended=program.request["run"], code=program.code)

    def _end_orphans(self, known: set[int]) -> bool:
        """Kill children that are no programs: programs have left them. Whether there were none."""
        orphans = [pid for pid in children_of(os.getpid()) if pid not in known]
        for orphan in orphans:
            waiting = [orphan]
            while waiting:
                pid = waiting.pop()
                below = children_of(pid)
                kill(pid)  # before its children, so that it starts no more of them
                waiting += below
        return not orphans


def kill(pid: int) -> None:
    """Ends a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def become_program(request: ProgramRequest, descriptors: list[int], server: ForkServer) -> NoReturn:
    """Confines the forked child, and is the program to its end."""
    try:
        prepare(request, descriptors, server)
        source = os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0)
        if request["language"] == "bash" and not os.access(BASH, os.X_OK):
            raise FileNotFoundError(f"no {BASH}")
    except BaseException as error:
        tell(server.owner, unavailable=request["run"], reason=f"{type(error).__name__}: {error}")
        os._exit(1)
    leave = os._exit  # whatever the program makes of it
    try:
        os.dup2(descriptors[0], 3)
        os.closerange(4 if request["language"] == "bash" else 3, 1 << 16)
        match request["language"]:
            case "bash":
                for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
                    signal.signal(ignored, signal.SIG_DFL)
                os.execve(BASH, ["bash", "/proc/self/fd/3"], dict(os.environ))
            case "pytest":
                leave(run_tests(source))
            case _:
                if request["modules"]:
                    sys.path.insert(0, request["folder"])
                leave(run_python(source))
    finally:  # never back into the server
        leave(1)


def prepare(request: ProgramRequest, descriptors: list[int], server: ForkServer) -> None:
    """Leaves this process with nothing but the program's rights, and tells the supervisor of it."""
    settings = server.settings
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    confine.offer_itself()
    itself = os.pidfd_open(os.getpid())  # pids differ where the supervisor is
    for number, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, number)
    libc.prctl(confine.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(confine.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what it leaves stays below it
    if settings["init"]:
        confine.private_mounts(request["folder"], settings["hidden"], request["memory"] // 4)
    os.environ.update(HOME=request["folder"], TMPDIR=request["folder"])
    os.chdir(request["folder"])
    if settings["user"] is not None:
        confine.become(settings["user"] + request["slot"], request["folder"])
    alone = settings["user"] is not None
    confine.limit(
        request["memory"],
        request["seconds"],
        request["file"],
        request["processes"] if alone else None,
    )
    confine.drop_capabilities()
    told = [itself]
    if settings["abi"]:
        confine.landlock(
            settings["read"],
            [request["folder"], *settings["write"]],
            settings["devices"],
            settings["abi"],
        )
        told.append(seccomp.install(server.filter, listened=True))
    elif settings["filters"]:
        seccomp.install(server.filter)
    else:
        no_new_privileges()
    report(server.line, request, told)


def report(line: int, request: ProgramRequest, descriptors: list[int]) -> None:
    """Tells the supervisor of a program that is about to run, with its process, and the descriptor
    by which its filter asks."""
    with socket.socket(fileno=line) as supervisor:
        while True:
            try:
                socket.send_fds(supervisor, [json.dumps(request).encode()], descriptors)
                return
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS:  # others are on their way
                    raise
                time.sleep(0.001)


def run_tests(source: bytes) -> int:
    """Runs the program's tests with pytest, and returns the exit code."""
    with open(TEST_FILE, "wb") as file:
        file.write(source)
    return run_python(TEST_RUNNER.encode())


def run_python(source: bytes) -> int:
    """Executes a program as `__main__`, and returns the exit code.

    It ends as the interpreter would end it, without visiting every object: that would copy all
    memory shared since the fork.
    """
    wait, now, pause = os.waitpid, time.monotonic, time.sleep  # whatever the program makes of them
    open_streams()
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # or every program would draw the same numbers
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    code = 0
    try:
        try:
            exec(compile(source.decode(), "program.py", "exec"), main.__dict__)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if not isinstance(end.code, int | None):
                print(end.code, file=sys.stderr)
        except BaseException as error:
            code = 1
            frames = error.__traceback__
            sys.excepthook(type(error), error.with_traceback(frames and frames.tb_next), None)
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        main.__dict__.clear()  # closes files and thereby writes them
        for file in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
            if file is not None and not file.closed:
                file.flush()
    except BaseException:
        code = code or 120  # as the interpreter where the output cannot be written
    until = now() + EXIT_GRACE_SECONDS
    try:
        while now() < until:
            wait(-1, os.WNOHANG)
            pause(0.002)
    except BaseException:  # no children
        pass
    return code & 0xFF


def open_streams() -> None:
    """Opens text streams on the program's own descriptors."""
    for number, name, mode, errors in (
        (0, "stdin", "r", "surrogateescape"),
        (1, "stdout", "w", "surrogateescape"),
        (2, "stderr", "w", "backslashreplace"),
    ):
        buffering = 1 if number == 2 else -1
        stream = open(  # noqa: SIM115
            number, mode, buffering, encoding="utf-8", errors=errors, closefd=False
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
