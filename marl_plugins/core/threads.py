"""Blocking calls that may never return."""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import weakref
from collections.abc import Callable
from typing import Any, ClassVar, TypeVar

Result = TypeVar("Result")

MOST = min(32, (os.cpu_count() or 1) + 4)
"""Calls at the same time, as `asyncio.to_thread` makes them."""


class _Worker:
    """A thread that makes one call after the other: starting a thread takes longer than most graders."""

    idle: ClassVar[list[_Worker]] = []
    """Those whose calls have returned, the last one last."""

    def __init__(self, work: Callable[[], None]):
        self.given: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.given.put(work)
        threading.Thread(target=self._run, name="blocking call", daemon=True).start()

    def _run(self) -> None:
        while True:
            self.given.get()()
            self.idle.append(self)


os.register_at_fork(after_in_child=_Worker.idle.clear)


async def in_daemon_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """What a blocking call returns or raises, in a thread that does nothing else meanwhile.

    Unlike those of `asyncio.to_thread`, which the event loop and Python wait for when they end, a thread that waits for ever (for a
    Ray whose raylet has gone, in a user's reward function) does not keep the process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(give: Callable[..., None], outcome: Any) -> None:
        if not done.cancelled():
            give(outcome)

    def work() -> None:
        try:
            outcome: tuple[Callable[..., None], Any] = (done.set_result, function(*arguments))
        except StopIteration as error:  # a future takes none, and would never be done
            stopped = RuntimeError(f"{getattr(function, '__name__', 'the call')} raised StopIteration")
            stopped.__cause__ = error
            outcome = (done.set_exception, stopped)
        except BaseException as error:
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    try:
        worker = _Worker.idle.pop()
    except IndexError:
        _Worker(work)
    else:
        worker.given.put(work)
    return await done


class DaemonThreads:
    """Blocking calls of one kind in daemon threads, at most `MOST` at a time; one that is given up makes room for the next."""

    def __init__(self) -> None:
        self._free: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()
        """By event loop."""

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """What a call returns or raises."""
        async with self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MOST)):
            return await in_daemon_thread(function, *arguments)
