"""Questions to math-verify, which knows LaTeX, in a process of its own.

An answer is whatever an agent wrote, and LaTeX of a few characters can keep a computer algebra
system busy for ever. So math-verify runs in math_process.py, where every answer has limits of CPU
time and memory, and as many questions are answered at a time as there are cores; it ends with the
process that asks. An answer that reaches a limit is wrong. Waiting for others does not count
against the deadline of who asks.
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.core.deadlines import not_counted
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.grading.math_process import BEGUN, CPU_SECONDS, YES

PROCESS = Path(__file__).with_name("math_process.py")


@dataclass
class Budget:
    """The time that one answer has: a list of many parts, each compared with many, has no more than
    one number.

    Args:
        seconds: Of CPU, that are left.
    """

    seconds: float = CPU_SECONDS


async def verified(answer: str, label: str, budget: Budget | None = None) -> bool:
    """Returns what math-verify says; False where it needs too much memory, or more time than is
    left, which is then none.

    Raises:
        InfrastructureFailure: The process that runs it does not work.
    """
    budget = budget or Budget()
    if budget.seconds <= 0:
        return False
    ours, theirs = socket.socketpair()
    process, control = helper()
    reply = b""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            writer.write(json.dumps([answer, label, budget.seconds]).encode() + b"\n")
            async with not_counted():
                with (
                    theirs
                ):  # the helper's end, which it hands to a process for this question alone
                    await _hand_over(control, theirs)
                begun = await reader.read(1)
            reply = await reader.read() if begun == BEGUN else b""
        finally:
            writer.close()
    except OSError:
        pass
    finally:
        ours.close()
    if not reply and process.poll() is not None:
        helper.cache_clear()
        raise InfrastructureFailure(
            "grader", f"the process that runs math-verify ended with {process.returncode}"
        )
    budget.seconds -= float(reply[1:] or budget.seconds)
    return reply[:1] == YES


async def _hand_over(control: socket.socket, end: socket.socket) -> None:
    """Give the helper the end of a connection, once it has taken those before."""
    while True:
        try:
            socket.send_fds(control, [b"?"], [end.fileno()])
            return
        except BlockingIOError:
            await asyncio.sleep(0.05)


@functools.cache
def helper() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Returns the process that runs math-verify, and the socket that it is asked through; it ends
    when that is closed."""
    ours, theirs = socket.socketpair()
    with theirs:  # -P: the modules beside that file are no libraries
        process = subprocess.Popen(
            [sys.executable, "-P", str(PROCESS)],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    ours.setblocking(False)
    return process, ours
