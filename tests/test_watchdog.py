"""The watchdog's clock, on an event loop whose time is set by the test."""

import asyncio
import contextlib
import subprocess
import sys

import psutil
import pytest

from marl_plugins.engine.processes.watchdog import Watchdog


class Clock(asyncio.SelectorEventLoop):
    """Time jumps to the next timer, so that nothing has to be waited for."""

    now = 0.0

    def time(self):
        return self.now

    def _run_once(self):
        timers = [handle._when for handle in self._scheduled if not handle._cancelled]
        if timers and not self._ready:
            self.now = max(self.now, min(timers))
        super()._run_once()


@pytest.fixture
def loop():
    loop = Clock()
    yield loop
    loop.close()


class Watched:
    """Something that is asked; `ended` are the times at which the watchdog ended it."""

    def __init__(self, loop):
        self.loop, self.ended = loop, []
        self.watchdog = Watchdog(lambda: self.ended.append(loop.time()))

    async def ask(self, takes, limit=10.0):
        with self.watchdog.asked(limit):
            await asyncio.sleep(takes)


def test_what_answers_in_time_is_left_alone(loop):
    async def run():
        for _ in range(5):
            await watched.ask(9)

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == [] and loop.time() == 45


def test_what_does_not_is_ended_once(loop):
    watched = Watched(loop)
    loop.run_until_complete(watched.ask(100))
    assert watched.ended == [10]


def test_an_answer_to_anybody_counts(loop):
    """A request of 25 seconds beside others that are answered every 5."""

    async def run():
        async def others():
            for _ in range(4):
                await watched.ask(5)

        await asyncio.gather(watched.ask(25), others())

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == []


def test_the_count_begins_at_the_last_answer(loop):
    async def run():
        await asyncio.gather(watched.ask(35), watched.ask(5))

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == [15]


def test_time_in_which_nobody_asks_does_not_count(loop):
    async def run():
        await watched.ask(9)
        await asyncio.sleep(1000)
        await watched.ask(9)

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == []


def test_requests_that_are_given_up_add_up_until_there_is_an_answer(loop):
    async def give_up(seconds, count=3):
        requests = [asyncio.ensure_future(watched.ask(100)) for _ in range(count)]
        await asyncio.wait(requests, timeout=seconds)
        for request in requests:
            request.cancel()
        await asyncio.wait(requests)

    async def run():
        await give_up(4)
        await asyncio.sleep(50)
        await give_up(4)
        assert watched.ended == []
        await watched.ask(1)
        await give_up(9)
        assert watched.ended == []
        await give_up(4)

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == [4 + 50 + 4 + 1 + 9 + 1]


def test_what_fails_has_answered(loop):
    async def fail():
        with watched.watchdog.asked(10):
            await asyncio.sleep(9)
            raise RuntimeError

    async def run():
        for _ in range(3):
            with pytest.raises(RuntimeError):
                await fail()

    watched = Watched(loop)
    loop.run_until_complete(run())
    assert watched.ended == []


WITHOUT_RAYLET = """
import os, signal, subprocess, sys, time
from marl_plugins.engine.processes.cluster import ended_without_raylet

raylet, other = (subprocess.Popen(["sleep", "100"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for _ in range(2))
print(other.pid, flush=True)
with ended_without_raylet(0.5) as watch:
    watch(raylet.pid)
    if "gone" in sys.argv:
        raylet.kill()
    if "waits" in sys.argv:
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        time.sleep(60)
for process in (raylet, other):
    process.kill()
"""


@pytest.mark.parametrize(("words", "code"), [(["gone", "waits"], 1), (["gone"], 0)])
def test_a_run_without_a_raylet_ends_whatever_it_waits_for(words, code):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAYLET, *words],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert ("Ray's raylet" in done.stderr) == bool(code)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=10)
