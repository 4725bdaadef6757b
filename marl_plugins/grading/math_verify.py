"""Questions to math-verify, which knows LaTeX, in a process of its own.

An answer is whatever an agent wrote, and LaTeX of a few characters (`9^{9^{9}}`) can keep a
computer algebra system busy for ever. So each question has limits of CPU time and memory there
(math_process.py), and an answer that reaches one is wrong. One question is answered after the
other; the wait does not count against the deadline of who asks.
"""

from __future__ import annotations

import asyncio
import functools
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from marl_plugins.core.deadlines import not_counted
from marl_plugins.core.failures import InfrastructureFailure

PROCESS = Path(__file__).with_name("math_process.py")


async def verified(answer: str, label: str) -> bool:
    """Returns whether math-verify finds two formulas equal, within its limits.

    Raises:
        InfrastructureFailure: The process that runs it does not work.
    """
    async with not_counted():
        return await asyncio.get_running_loop().run_in_executor(thread(), _ask, answer, label)


def _ask(answer: str, label: str) -> bool:
    process = helper()
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps([answer, label]) + "\n")
        process.stdin.flush()
        reply = process.stdout.readline()
    except BrokenPipeError:
        reply = ""
    if not reply:
        helper.cache_clear()
        raise InfrastructureFailure(
            "grader", f"the process that runs math-verify ended with {process.wait()}"
        )
    return int(reply) == 0


@functools.cache
def thread() -> ThreadPoolExecutor:
    """Returns the thread that asks."""
    return ThreadPoolExecutor(1, "math-verify")


@functools.cache
def helper() -> subprocess.Popen[str]:
    """Returns the process that runs math-verify; it ends when its input does."""
    return subprocess.Popen(  # -P: the modules beside that file are no libraries
        [sys.executable, "-P", str(PROCESS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
