"""Runs an agent's program in a process that was forked for it, to its end: in Python without exec,
with bash, or with pytest.

Tests have passed if pytest itself says so: a process runs it and says at its end, with a number
that its parent has drawn, how that ended; the parent exits as the tests did. So a program that
leaves (`os._exit(0)`, `SystemExit`, in a thread) has not passed. Program and tests share an
interpreter: one that looks for the number finds it. Checks that a program must not reach are run by
checker.py.

Standard library of Python 3.8 only: the fork server imports it without the package, and services
are sent it as text, before remote.py.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import resource
import secrets
import signal
import sys
import time
import types
from collections.abc import Callable
from typing import Any

EXIT_GRACE_SECONDS = 0.3
"""Seconds for a program's children to end, or to write something, after it has ended."""
BASH = "/bin/bash"
PROGRAM_FILE, TEST_FILE = "program.py", "test_program.py"
TEST_WORDS = ["-q", "-p", "no:cacheprovider", "--rootdir=.", "--confcutdir=.", TEST_FILE]
"""What pytest is given."""
SILENT = "the tests did not come to their end: the program left before pytest had reported\n"


def limit_each(memory: int, seconds: int, file: int) -> None:
    """Sets the limits of each process; what is mapped already is not the program's.

    Args:
        memory, file: In bytes.
    """
    with open("/proc/self/statm", "rb") as statm:
        mapped = int(statm.read().split()[0]) * resource.getpagesize()
    for which, soft, hard in (
        (resource.RLIMIT_AS, mapped + memory, mapped + memory),
        (resource.RLIMIT_CPU, seconds, seconds + 1),
        (resource.RLIMIT_FSIZE, file, file),
        (resource.RLIMIT_CORE, 0, 0),
    ):
        tighten(which, soft, hard)


def tighten(which: int, soft: int, hard: int) -> None:
    """Sets a limit, or leaves what is lower already."""
    most = resource.getrlimit(which)[1]
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(which, (soft, hard))


def run_program(language: str, source: int, modules: bool) -> None:
    """Is the program, in its workspace, and ends with it.

    Args:
        source: Descriptor of a file with its text.
        modules: Whether a program of Python's may import modules from its workspace.
    """
    leave = os._exit  # whatever the program makes of it
    text = os.pread(source, os.fstat(source).st_size, 0)
    os.dup2(source, 3)
    os.closerange(4 if language == "bash" else 3, 1 << 16)
    if language == "bash":
        for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
            signal.signal(ignored, signal.SIG_DFL)
        os.execve(BASH, ["bash", "/proc/self/fd/3"], dict(os.environ))
    if language == "pytest":
        with open(TEST_FILE, "wb") as file:
            file.write(text)
        leave(run_python(run_pytest, {}))
    if modules:
        sys.path.insert(0, os.getcwd())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    names = main.__dict__
    leave(run_python(lambda: exec(compile(text.decode(), PROGRAM_FILE, "exec"), names), names))


def run_python(body: Callable[[], object], names: dict[str, Any]) -> int:
    """Does what a program of Python's does, and returns its exit code.

    It ends as the interpreter would end it, without visiting every object: that would copy all
    memory shared since the fork.

    Args:
        names: Those that it leaves.
    """
    wait, now, pause = os.waitpid, time.monotonic, time.sleep  # whatever the program makes of them
    open_streams()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()  # or every program would draw the same numbers
    code = 0
    try:
        try:
            body()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if not (end.code is None or isinstance(end.code, int)):
                print(end.code, file=sys.stderr)
        except BaseException as error:
            code = 1
            frames = error.__traceback__
            while frames and frames.tb_frame.f_code.co_filename != PROGRAM_FILE:
                frames = frames.tb_next
            sys.excepthook(type(error), error.with_traceback(frames), None)
        if "threading" in sys.modules:
            sys.modules["threading"]._shutdown()
        atexit._run_exitfuncs()
        flush_streams()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        names.clear()  # closes files and thereby writes them
        flush_streams()
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


def flush_streams() -> None:
    """Flushes what the program has for its streams, as the interpreter does."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()


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


def run_pytest() -> None:
    """Runs the tests, and exits as pytest does; with 1 where it has not come to its end."""
    drawn, (reading, writing) = secrets.token_bytes(16), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        import pytest

        code = int(pytest.main(TEST_WORDS))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):  # closed by a test
                stream.flush()
        os.write(writing, drawn + bytes([code]))
        os._exit(code)
    os.close(writing)
    status = os.waitpid(child, 0)[1]
    os.set_blocking(reading, False)
    reply = b""
    with contextlib.suppress(BlockingIOError):
        reply = os.read(reading, 64)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))  # so that the limit that it reached is seen
    code = os.WEXITSTATUS(status)
    if reply != drawn + bytes([code]):
        sys.stderr.write(SILENT)
        code = code or 1
    sys.exit(code)
