"""A program that runs tests in the language pytest, in the sandbox: they have passed if pytest
itself says so.

A process runs pytest and says at its end, with a number that its parent has drawn, how that ended;
the parent exits as the tests did. So a program that leaves (`os._exit(0)`, `SystemExit`, in a
thread) has not passed. Program and tests share an interpreter: one that looks for the number finds
it. Checks that a program must not reach are run by checker.py.

Standard library of Python 3.8 only: this is sent to services as text, and followed by
`main(WORDS)`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import sys

SILENT = "the tests did not come to their end: the program left before pytest had reported\n"


def main(words: list[str]) -> None:
    """Runs pytest with some arguments, and exits with its code; with 1 where it has not come to its
    end."""
    drawn, (reading, writing) = secrets.token_bytes(16), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        import pytest

        code = int(pytest.main(words))
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
