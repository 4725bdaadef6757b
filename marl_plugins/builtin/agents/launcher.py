"""Starts programs from one process that has imported what they import, by forking it, and ends what
they leave behind.

    parent -> launcher   "fork NUMBER KEY" with two descriptors: a socket to the program, and where
                         its output goes; "share NUMBER KEY" likewise, for a process in which many
                         trajectories run "kill NUMBER"
    launcher -> parent   "listener" with a socket, first, where programs are isolated; "ready", once
                         the imports are made; "NUMBER STATUS" when a program and the processes that
                         it has left behind have ended
    parent -> program    one line of JSON over its socket: environment, prompt, item
    program -> parent    one line of JSON: {"answer": ...} or {"error": {...}}; of a shared process
                         one for each trajectory, with its number; of a command also {"status": ...}

A framework takes seconds to be imported, and a fork a hundredth of one. The program's own file is
imported after the fork, because clients that it makes at its top read the environment. Libraries
import more when they are used first: what one program has imported so is there for the next ones
(`LateImports`). This file is run as a script, also by a Python without this package, so that
nothing but the standard library is imported.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import importlib
import importlib.util
import inspect
import io
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LIBC = ctypes.CDLL(None)
MOST_PRINTED_BYTES = 16 * 2**20
"""Of a command."""


def imports_of(file: Path, seen: set[Path]) -> list[str]:
    """Returns the modules that a file imports at its top, and those that files beside it do, which
    are not imported themselves."""
    if file in seen:
        return []
    seen.add(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # the program says so itself, with its line
    modules = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        else:
            continue
        for name in names:
            beside = file.parent / name.split(".")[0]
            local = [
                path
                for path in (beside.with_suffix(".py"), beside / "__init__.py")
                if path.is_file()
            ]
            modules += (
                [module for path in local for module in imports_of(path, seen)] if local else [name]
            )
    return modules


def imports_inside(file: Path) -> set[str]:
    """Returns the packages that functions of a file import themselves; `*` where only the running
    program knows."""
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {"*"}
    functions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
    ]
    packages: set[str] = set()
    for node in (inner for function in functions for inner in ast.walk(function)):
        if isinstance(node, ast.Import):
            packages.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            packages.add((node.module or "*").split(".")[0])
        elif isinstance(node, (ast.Name, ast.Attribute)):
            name = node.id if isinstance(node, ast.Name) else node.attr
            packages.update({"*"} if name in ("__import__", "import_module") else ())
    return packages


def preload(file: Path) -> None:
    """Imports what a program's file imports. What cannot be imported is the program's to report."""
    for name in dict.fromkeys(imports_of(file, set())):
        try:
            importlib.import_module(name)
        except BaseException as error:
            print(f"{name} cannot be imported: {error!r}", file=sys.stderr)


def loaded(file: Path) -> Any:
    """Returns the module of the program's file."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def arguments_of(function: Any, request: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns what a program's function is called with: the prompt, and by name what else it has a
    parameter for."""
    values = {"prompt": request["prompt"], "item": SimpleNamespace(**request["item"])}
    values["endpoint"] = SimpleNamespace(**request["endpoint"])
    names = list(inspect.signature(function).parameters)
    named = {name: values[name] for name in names if name in ("item", "endpoint")}
    rest = [name for name in names if name not in named]
    return ([values["prompt"]] if rest else []), named


def outcome_of(error: BaseException, file: Path) -> dict[str, str]:
    """Returns what a program has raised, with the innermost line of its own folder."""
    error_lines = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        error_lines.append(traceback.FrameSummary(error.filename, error.lineno or 1, ""))
    own = [
        f"{frame.filename}:{frame.lineno}"
        for frame in error_lines
        if frame.filename.startswith(f"{file.parent}{os.sep}")
    ]
    outside = [place for place in own if "site-packages" not in place]
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "place": outside[-1] if outside else "",
        "traceback": "".join(traceback.format_exception(error)),
    }


def called(file: Path, name: str, request: Any) -> Any:
    """Returns what the program answers, and raises what it raises."""
    module = loaded(file)
    function = getattr(module, name, None)
    if not callable(function):
        raise AttributeError(f"{file} has no function {name}")
    positional, named = arguments_of(function, request)
    answer = function(*positional, **named)
    if inspect.isawaitable(answer):
        import asyncio

        async def awaited() -> Any:
            return await answer

        answer = asyncio.run(awaited())
    return answer


def report(file: Path, work: Callable[[], Any]) -> dict[str, Any]:
    """Returns what is sent back: the answer that `work` gives, or what it raises."""
    try:
        answer = work()
    except BaseException as error:  # also `sys.exit()`
        return {"error": outcome_of(error, file)}
    if isinstance(answer, str):
        return {"answer": answer}
    return {"no_text": type(answer).__name__}


def command_report(words: list[str], prompt: str) -> dict[str, Any]:
    """Returns what is sent back of a command: the answer that it prints, or the status with which
    it has ended.

    It is waited for, and not the end of its output: what it has started may hold that open.
    """
    with os.fdopen(os.memfd_create("prompt"), "w+b") as prompt_file:
        prompt_file.write(prompt.encode("utf-8", "replace"))
        prompt_file.seek(0)
        process = subprocess.Popen(
            words, stdin=prompt_file, stdout=subprocess.PIPE, preexec_fn=die_with_parent
        )
    assert process.stdout is not None
    output, ended, printed = process.stdout.fileno(), os.pidfd_open(process.pid), b""
    while len(printed) <= MOST_PRINTED_BYTES:
        ready, _, _ = select.select([output, ended], [], [])
        data = os.read(output, 2**20) if output in ready else b""
        if not data:
            break
        printed += data
    else:
        return {"no_text": f"more than {MOST_PRINTED_BYTES} bytes"}
    status = process.wait()
    return (
        {"status": status}
        if status
        else {"answer": printed.decode(errors="replace").removesuffix("\n")}
    )


def die_with_parent() -> None:
    """Has this process killed when the one that has started it ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def written_to(descriptor: int) -> io.TextIOWrapper:
    """Returns a text stream that is flushed with each line."""
    file = io.BufferedWriter(io.FileIO(descriptor, "w", closefd=False))
    return io.TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def become_program(output: int) -> None:
    """Makes the forked process one of its own."""
    die_with_parent()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout, sys.stderr = written_to(1), written_to(2)


def folder_of(number: str) -> str:
    """Returns the folder of one trajectory, where programs are isolated."""
    return f"/tmp/{number}"


def enter_folder(number: str) -> None:
    """Makes the folder of one trajectory, and works in it."""
    os.mkdir(folder_of(number), 0o700)
    os.chdir(folder_of(number))
    os.environ.update(HOME=folder_of(number), TMPDIR=folder_of(number))


class LateImports:
    """The modules that libraries import when they are used first, which the launcher learns from
    programs that have ended.

    One program at a time reports them. Nothing is learned from a program whose functions import, or
    which has changed its
    environment: a module may read what the program has set before.
    """

    def __init__(self, file: Path | None):
        self.folder = f"{file.parent}{os.sep}" if file else ""
        seen: set[Path] = set()
        if file is not None:
            imports_of(file, seen)
        inside = {name for path in seen for name in imports_inside(path)}
        self.wanted = file is not None and inside <= sys.modules.keys()
        self.source: int | None = None
        """Where a program reports; None: none is about to."""
        self.said = b""
        self.tried: set[str] = set()

    def asked(self) -> int | None:
        """Returns where the next program has to report; None: it does not."""
        if not self.wanted or self.source is not None:
            return None
        self.source, sink = os.pipe()
        return sink

    def tell(self, sink: int, environment: dict[str, str]) -> None:
        """Reports what has been imported in this process since it was forked."""
        imported = []
        if dict(os.environ) == environment:
            for name, module in list(sys.modules.items()):
                spec = getattr(module, "__spec__", None)
                if spec is None or spec.name != name or name in self.tried:
                    continue
                place = str(spec.origin)
                if not place.startswith(self.folder) or "site-packages" in place:
                    imported.append(name)
        with os.fdopen(sink, "w") as file:
            file.write("\n".join(imported))

    def take(self) -> None:
        """Reads a part of a report, and imports what it says once it is whole."""
        assert self.source is not None
        if data := os.read(self.source, 2**16):
            self.said += data
            return
        os.close(self.source)
        names, self.said, self.source = self.said.decode().split(), b"", None
        before = len(sys.modules)
        for name in names:
            if name not in self.tried and name not in sys.modules:
                with contextlib.suppress(BaseException):  # programs go on importing it themselves
                    importlib.import_module(name)
        self.tried.update(names)
        if len(sys.modules) > before:
            gc.collect()
            gc.freeze()


def run_program(
    connection: socket.socket,
    program: Callable[[Any], dict[str, Any]],
    tell: Callable[[dict[str, str]], None],
) -> None:
    """Runs a program once.

    Args:
        program: Returns what is sent back for a request.
        tell: Is told the environment that the program was given, at its end.
    """
    with connection.makefile("rb") as lines:
        request = json.loads(lines.readline())
    os.environ.update(request["environment"])
    environment = dict(os.environ)
    random.seed(request["seed"])
    result = program(request)
    tell(environment)
    connection.sendall(json.dumps(result).encode())
    sys.stdout.flush()


def run_shared(file: Path, name: str, connection: socket.socket) -> None:
    """Runs the program for many trajectories at once, until the parent has gone."""
    import asyncio

    module_or_error = report_of_import(file, name)
    running: dict[str, Any] = {}

    async def run(request: Any, writer: Any) -> None:
        try:
            if isinstance(module_or_error, dict):
                result = module_or_error
            else:
                positional, named = arguments_of(module_or_error, request)
                answer = await module_or_error(*positional, **named)
                result = (
                    {"answer": answer}
                    if isinstance(answer, str)
                    else {"no_text": type(answer).__name__}
                )
        except asyncio.CancelledError:
            return
        except BaseException as error:  # also `sys.exit()`
            result = {"error": outcome_of(error, file)}
        finally:
            del running[request["number"]]
        writer.write(json.dumps({"number": request["number"], **result}).encode() + b"\n")

    async def serve() -> None:
        reader, writer = await asyncio.open_connection(sock=connection, limit=2**26)
        while line := await reader.readline():
            request = json.loads(line)
            number = request["number"]
            if not request.get("cancel"):
                running[number] = asyncio.create_task(run(request, writer))
            elif number in running:
                running[number].cancel()

    asyncio.run(serve())


def report_of_import(file: Path, name: str) -> Any:
    """Returns the program's function, or what importing it raises."""
    try:
        return getattr(loaded(file), name)
    except BaseException as error:
        return {"error": outcome_of(error, file)}


class Launcher:
    """Forks programs, and ends them with all that they have started.

    Args:
        file: That of a Python program; None: `words` are a command.
        words: Its function.
    """

    def __init__(self, control: socket.socket, file: Path | None, words: list[str], isolated: bool):
        self.control = control
        self.isolated = isolated
        self.file = file
        self.words = words
        self.late = LateImports(file)
        self.running: dict[str, tuple[int, str]] = {}
        """Process and key of each program, by its number."""
        self.ended, wakeup = socket.socketpair()
        for end in (self.ended, wakeup):
            end.setblocking(False)
        self.wakeup = wakeup
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Works until the parent has gone."""
        self.control.send(b"ready")
        while True:
            waited: list[Any] = [self.control, self.ended]
            waited += [] if self.late.source is None else [self.late.source]
            ready, _, _ = select.select(waited, [], [])
            if self.late.source in ready:
                self.late.take()
            if self.ended in ready:
                self.ended.recv(4096)
            self.reap()
            if self.control in ready and not self.command():
                break
        self.end_all()

    def end_all(self) -> None:
        """Ends every program with what it has left behind."""
        for process, _ in self.running.values():
            self.kill(process)
            os.waitpid(process, 0)
        self.running.clear()
        self.end_strays()

    def command(self) -> bool:
        """Does what the parent asks for; returns False once that has gone."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.control, 4096, 2)
        except ConnectionError:
            return False
        if not message:
            return False
        what, number, *key = message.decode().split()
        if what == "kill":
            if number in self.running:
                self.kill(self.running[number][0])
            return True
        connection, output = socket.socket(fileno=descriptors[0]), descriptors[1]
        connection.set_inheritable(False)
        os.set_inheritable(output, False)
        sink = self.late.asked() if what == "fork" else None
        process = os.fork()
        if process == 0:
            try:
                self.control.close()
                become_program(output)
                if self.isolated:
                    enter_folder(number)
                self.work(what, connection, sink)
                os._exit(0)
            finally:  # what is raised there must not reach this loop
                traceback.print_exc()
                os._exit(1)
        with contextlib.suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(process, process)
        connection.close()
        os.close(output)
        if sink is not None:
            os.close(sink)
        self.running[number] = process, key[0]
        return True

    def work(self, what: str, connection: socket.socket, sink: int | None) -> None:
        """Runs the program, in a process that has been forked for that."""
        if what == "share":
            assert self.file is not None
            run_shared(self.file, self.words[0], connection)
            return
        self.late.tried = set(sys.modules)
        run_program(
            connection,
            self.program,
            lambda known: self.late.tell(sink, known) if sink is not None else None,
        )

    def program(self, request: Any) -> dict[str, Any]:
        """Returns what is sent back for a request."""
        if (file := self.file) is None:
            return command_report(self.words, request["prompt"])
        return report(file, lambda: called(file, self.words[0], request))

    @staticmethod
    def kill(process: int) -> None:
        """Ends a program's process group; its first process has not been reaped, so that the number
        is still its own."""
        for end in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                end(process, signal.SIGKILL)

    def reap(self) -> None:
        """Takes leave of programs that have ended, and ends what they have left behind."""
        numbers = {process: number for number, (process, _) in self.running.items()}
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid in numbers:
                self.kill(ended.si_pid)
            _, status = os.waitpid(ended.si_pid, 0)
            if (number := numbers.pop(ended.si_pid, None)) is not None:
                del self.running[number]
                self.end_strays()
                if self.isolated:
                    shutil.rmtree(folder_of(number), ignore_errors=True)
                with contextlib.suppress(
                    OSError
                ):  # the parent has gone, which the loop hears of next
                    self.control.send(f"{number} {os.waitstatus_to_exitcode(status)}".encode())

    def end_strays(self) -> None:
        """Ends processes that have left their program's group and lost their parent, whose child
        they then are of."""
        programs = {process for process, _ in self.running.values()}
        keys = [key.encode() for _, key in self.running.values()]
        try:
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        except OSError:
            return
        for child in map(int, children):
            if child not in programs:
                try:
                    environment = Path(f"/proc/{child}/environ").read_bytes()
                except OSError:
                    continue
                if not any(key in environment for key in keys):
                    self.kill(child)


def hand_out_listener(parent: socket.socket) -> None:
    """Gives the parent a socket in this network, which has no other machine: the endpoint listens
    there."""
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        socket.send_fds(parent, [b"listener"], [listener.fileno()])


def main(control: str, isolated: str, program: str, *words: str) -> None:
    parent = socket.socket(fileno=int(control))
    if isolated:
        hand_out_listener(parent)
    file = Path(program) if program else None
    if file is not None:
        sys.path[0] = str(file.parent)  # in place of this file's own folder
        sys.dont_write_bytecode = True
        preload(file)
    LIBC.prctl(PR_SET_CHILD_SUBREAPER, 1)
    gc.collect()
    gc.freeze()
    Launcher(parent, file, list(words), bool(isolated)).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])
