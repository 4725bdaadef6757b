"""The pool (marl_plugins/sandbox/pool.py) of a recipe's program: forks it from a process that has
imported what it imports, and ends what it leaves behind.

    main() with sys.argv[1] = LaunchSettings as JSON

It says `ready` once the imports are made; where programs are isolated, with the endpoint's socket.
With a request come three descriptors: a file with what the program is asked in JSON, a pipe for its
answer, and one for its output. A Python program answers in JSON: {"answer": ...} or
{"error": {...}}; what a command prints is the answer.

A framework takes seconds to be imported, and a fork a hundredth of one. The program's own file is
imported after the fork, because clients that it makes at its top read the environment. What
libraries import when they are used first is imported here once a program has said so, and is there
for the next ones. This file is run without the package, also by another Python, so that nothing but
the standard library is imported.
"""

import ast
import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import random
import re
import shutil
import socket
import sys
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, TextIO, TypedDict

from marl_plugins.sandbox.pool import Forked, Pool, become_program

IMPORTED_INSIDE = re.compile(r"^[ \t]+(?:import|from)[ \t]+(\w*)|(__import__|import_module)", re.M)
"""Packages that functions of a file may import themselves, and ways to import any."""
Report = dict[str, Any]
"""What a program sends back."""


class LaunchSettings(TypedDict):
    """Settings that a launcher is started with.

    Args:
        control: Descriptor of the socket to its owner.
        file, function: The Python program; empty for a command.
        command: The words of a command.
        isolated: Whether it runs in namespaces of its own.
    """

    control: int
    file: str
    function: str
    command: list[str]
    isolated: bool


def main() -> None:
    """Runs the launcher."""
    settings: LaunchSettings = json.loads(sys.argv[1])
    control = socket.socket(fileno=settings["control"])
    launcher = Launcher(settings, control)
    if settings["file"]:
        sys.path[0] = str(launcher.file.parent)
        sys.dont_write_bytecode = True
        launcher.preload(imports_of(launcher.file, set()))
    sys.argv[1:] = []
    ready = [b'{"ready": true}']
    if settings["isolated"]:
        # in this network, which has no other machine; the endpoint listens there
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            socket.send_fds(control, ready, [listener.fileno()])
    else:
        control.sendmsg(ready)
    launcher.serve()


def imports_of(file: Path, seen: set[Path]) -> Iterator[str]:
    """Yields the modules that a file imports at its top, and those that files beside it do, which
    are not imported themselves."""
    seen.add(file)
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return  # the program says so itself, with its line
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            beside = file.parent / name.split(".")[0]
            local = {beside.with_suffix(".py"), beside / "__init__.py"}
            there = [path for path in local if path.is_file()]
            yield from () if there else (name,)
            for path in set(there) - seen:
                yield from imports_of(path, seen)


def folder_of(process: int) -> str:
    """Returns the folder of one trajectory, where programs are isolated."""
    return f"/tmp/{process}"


def written_to(descriptor: int) -> TextIO:
    """Returns a text stream that is flushed with each line."""
    return open(descriptor, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def arguments_of(function: Any, request: Any) -> tuple[list[str], dict[str, Any]]:
    """Returns what a program's function is called with: the prompt, and by name what else it has a
    parameter for."""
    values = {name: SimpleNamespace(**request[name]) for name in ("item", "endpoint")}
    names = list(inspect.signature(function).parameters)
    named = {name: values[name] for name in names if name in values}
    return ([request["prompt"]] if len(names) > len(named) else []), named


def outcome_of(error: BaseException, folder: str) -> Report:
    """Returns what is sent back for what a program has raised, with the innermost line of its own
    folder."""
    error_lines = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename:
        error_lines.append(traceback.FrameSummary(error.filename, error.lineno or 1, ""))
    own = [f"{f.filename}:{f.lineno}" for f in error_lines if lies_in(f.filename, folder)]
    raised = {
        "kind": type(error).__name__,
        "text": str(error),
        "place": own[-1] if own else "",
        "traceback": "".join(traceback.format_exception(error)),
    }
    return {"error": raised}


def lies_in(place: str, folder: str) -> bool:
    """Returns whether a file is the program's own."""
    return place.startswith(folder) and "site-packages" not in place


def imports_inside(folder: str) -> set[str]:
    """Returns the packages that functions of the program's files may import themselves."""
    inside = set[str]()
    for module in list(sys.modules.values()):
        place = str(getattr(module, "__file__", ""))
        if lies_in(place, folder):
            text = Path(place).read_text(encoding="utf-8", errors="replace")
            inside.update("".join(groups) for groups in IMPORTED_INSIDE.findall(text))
    return inside


class Launcher(Pool):
    """Forks programs, and imports what they have imported."""

    def __init__(self, settings: LaunchSettings, control: socket.socket):
        super().__init__(control)
        self.settings = settings
        self.file = Path(settings["file"])
        self.folder = f"{self.file.parent}{os.sep}"
        self.imported = os.open(
            f"/proc/self/fd/{os.memfd_create('imported')}", os.O_RDWR | os.O_APPEND
        )
        """Where programs say what they have imported."""
        self.known = set(sys.modules)
        """What has been imported here, or could not be."""

    def ended(self, forked: Forked) -> None:
        if self.settings["isolated"]:
            shutil.rmtree(folder_of(forked.pid), ignore_errors=True)
        names = os.pread(self.imported, os.fstat(self.imported).st_size, 0).decode().split()
        os.ftruncate(self.imported, 0)
        if not self.known.issuperset(names):
            self.preload(names)

    def preload(self, names: Iterable[str]) -> None:
        """Imports modules; what cannot be imported programs go on importing themselves."""
        for name in names:
            if name not in self.known:
                self.known.add(name)
                with contextlib.suppress(BaseException):
                    importlib.import_module(name)
        self.known.update(sys.modules)
        gc.collect()
        gc.freeze()  # a collection in a program would copy the shared pages

    def become(
        self, request: dict[str, Any], connection: socket.socket, descriptors: list[int]
    ) -> None:
        connection.close()
        asked, answer, output = descriptors
        become_program([os.open(os.devnull, os.O_RDONLY), output, output])
        sys.stdout, sys.stderr = written_to(1), written_to(2)
        if self.settings["isolated"]:
            folder = folder_of(os.getpid())
            os.mkdir(folder, 0o700)
            os.chdir(folder)
            os.environ.update(HOME=folder, TMPDIR=folder)
        with open(asked, "rb") as file:
            program_request = json.load(file)
        os.environ.update(program_request["environment"])
        if self.settings["command"]:
            self._execute(program_request["prompt"], answer)
        random.seed(program_request["seed"])
        with open(answer, "w") as file:
            json.dump(self._report(program_request), file)
        sys.stdout.flush()

    def _execute(self, prompt: str, answer: int) -> NoReturn:
        """Becomes a command."""
        with os.fdopen(os.memfd_create("prompt"), "w+b") as file:
            file.write(prompt.encode("utf-8", "replace"))
            file.seek(0)
            os.dup2(file.fileno(), 0)
        os.dup2(answer, 1)
        os.execvp(self.settings["command"][0], self.settings["command"])

    def _report(self, request: Any) -> Report:
        """Runs the program once."""
        environment = dict(os.environ)
        try:
            function = self._function()
            positional, named = arguments_of(function, request)
            answer = function(*positional, **named)
            if inspect.iscoroutine(answer):
                import asyncio

                answer = asyncio.run(answer)
            if dict(os.environ) == environment and imports_inside(self.folder) <= self.known:
                self._say_imported()
            if isinstance(answer, str):
                return {"answer": answer}
            text = f"it returned {type(answer).__name__}; expected a text"
            return {"error": {"text": text, "traceback": ""}}
        except BaseException as error:  # also `sys.exit()`
            return outcome_of(error, self.folder)

    def _function(self) -> Any:
        """Imports the program's function. What that has imported may be there for the next
        programs, whatever functions do later."""
        spec = importlib.util.spec_from_file_location(self.file.stem, self.file)
        assert spec and spec.loader
        sys.modules[self.file.stem] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        finally:
            self._say_imported()
        return getattr(module, self.settings["function"])

    def _say_imported(self) -> None:
        """Says what has been imported in this process since it was forked, but for the program's
        own modules."""
        names = []
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if name not in self.known and spec is not None and spec.name == name:
                self.known.add(name)
                if not lies_in(str(spec.origin), self.folder):
                    names.append(f"{name}\n")
        os.write(self.imported, "".join(names).encode())
