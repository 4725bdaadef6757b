"""An event loop whose clock is virtual, and engines with declared costs: scheduling without waiting
for it.

    result, seconds = run(coroutine)

Where nothing is ready, the clock jumps to the next timer. What a thread would do is done at once
and takes no time.
"""

import asyncio
import hashlib
import selectors
from collections import deque
from types import SimpleNamespace
from unittest import mock

from ray.exceptions import RayActorError

from marl_plugins.core import threads
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.processes.engines import EngineProcess


class _Jumping(selectors.DefaultSelector):
    """Waits for nothing: the time that it is asked to wait has passed at once."""

    now = 0.0

    def select(self, timeout=None):
        assert timeout is not None, (
            "nothing is ready and no timer is set: everything waits for ever"
        )
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """See the module's text."""

    def __init__(self):
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self):
        return self._jumping.now

    def run_in_executor(self, executor, func, *args):
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def run(coroutine):
    """What a coroutine returns on a virtual clock, and the seconds that passed there."""
    at_once = mock.patch.object(threads, "_begin", lambda call: call())
    with at_once, asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine), runner.get_loop().time()


async def _nowhere():
    return None


class SimulatedEngine(EngineProcess):
    """An engine whose answers take as long as is declared, and are made of the request's seed.

    Args:
        seconds: Of the answer to a request.
        places: Number of requests that it answers at a time; the others wait inside, by arrival, as
            in vLLM.
    """

    def __init__(self, policy, seconds, places=1, version=0):
        locate = SimpleNamespace(remote=lambda function: _nowhere())
        super().__init__(SimpleNamespace(__ray_call__=locate, _actor_id=b"", engine=self), [])
        self.policy, self.version, self.epoch = policy, version, 0
        self.seconds = seconds
        self.places = places
        self.dead = False
        self.served = []
        """Of each answer that was given: the request, and when it was begun and finished."""
        self._inside = deque()
        self._running = {}

    async def answer(self, call, silence):
        if self.dead:
            raise self.death
        answer = asyncio.get_running_loop().create_future()
        self._inside.append((call, answer, (self.policy, self.version, self.epoch)))
        self._begin()
        try:
            return await answer
        except asyncio.CancelledError:
            if answer in self._running:
                self._running.pop(answer).cancel()
                self._begin()
            raise

    def _begin(self):
        loop = asyncio.get_running_loop()
        while self._inside and len(self._running) < self.places:
            call, answer, asked = self._inside.popleft()
            if not answer.done():
                self._running[answer] = loop.call_later(
                    self.seconds(call), self._finish, call, answer, asked, loop.time()
                )

    def _finish(self, call, answer, asked, begun):
        del self._running[answer]
        if not answer.done():  # else it was given up in this moment
            self.served.append((call, begun, asyncio.get_running_loop().time()))
            ids = (
                *hashlib.blake2b(str(call.seed).encode(), digest_size=4).hexdigest().encode(),
                ord("^"),
            )
            policy, version, epoch = asked
            version = version if epoch == self.epoch else -1
            answer.set_result(Generation(ids, (-0.5,) * len(ids), "stop", policy, version))
        self._begin()

    async def load_state(self, policy, version, seconds):
        """Take over a policy's weights."""
        if self.dead:
            raise self.death
        self.epoch += 1
        self.version = -1
        await asyncio.sleep(seconds)
        if self.dead:
            raise self.death
        self.policy, self.version = policy, version

    def die(self, death=None):
        """What kill -9 does, or Ray's memory monitor: everything that it was asked fails."""
        self.dead, self.death = True, death or RayActorError()
        for timer in self._running.values():
            timer.cancel()
        for answer in (*self._running, *(answer for _, answer, _ in self._inside)):
            if not answer.done():
                answer.set_exception(self.death)
        self._running.clear()
        self._inside.clear()

    def kill(self):
        self.die()
