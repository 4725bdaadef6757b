"""Blocking calls in threads that do not keep the process."""

import asyncio
import subprocess
import sys
import threading

import pytest

from marl_plugins.core.threads import in_daemon_thread


def test_the_result_and_the_error_of_a_call_come_back():
    async def work():
        assert await in_daemon_thread(divmod, 7, 2) == (3, 1)
        assert await in_daemon_thread(threading.current_thread) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            await in_daemon_thread(divmod, 7, 0)
        with pytest.raises(SystemExit):
            await in_daemon_thread(sys.exit, 3)

    asyncio.run(work())


def test_a_call_that_is_given_up_harms_nothing():
    ended, go = threading.Event(), threading.Event()

    def wait():
        go.wait()
        ended.set()

    async def work():
        call = asyncio.create_task(in_daemon_thread(wait))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        go.set()
        await asyncio.to_thread(ended.wait)

    asyncio.run(work())


def test_a_call_that_never_returns_keeps_neither_the_loop_nor_the_process():
    code = (
        "import asyncio, threading\nfrom marl_plugins.core.threads import in_daemon_thread\n"
        "async def work():\n    await asyncio.wait_for(in_daemon_thread(threading.Event().wait), 0.1)\n"
        "try:\n    asyncio.run(work())\nexcept TimeoutError:\n    print('ended')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
