"""Blocking calls that may never return."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")

MOST = min(32, (os.cpu_count() or 1) + 4)
"""Calls at the same time, as `asyncio.to_thread` makes them."""


async def in_daemon_thread(function: Callable[..., Result], *arguments: Any) -> Result:
    """Makes a blocking call in a thread that has nothing else to do, and returns or raises what it
    does.

    Unlike those of `asyncio.to_thread`, which the event loop and Python wait for when they end, a
    thread that waits for ever (for a Ray whose raylet has gone, in a user's reward function) does
    not keep the process.
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
            stopped = RuntimeError(
                f"{getattr(function, '__name__', 'the call')} raised StopIteration"
            )
            stopped.__cause__ = error
            outcome = (done.set_exception, stopped)
        except BaseException as error:
            outcome = (done.set_exception, error)
        with contextlib.suppress(RuntimeError):  # nobody waits any more: the loop is closed
            loop.call_soon_threadsafe(settle, *outcome)

    _begin(work)
    return await done


def _begin(call: Callable[[], None]) -> None:
    threading.Thread(target=call, daemon=True).start()


class DaemonThreads:
    """Blocking calls of one kind in daemon threads, at most `MOST` at a time; one that is given up
    makes room for the next."""

    def __init__(self) -> None:
        self._free: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            weakref.WeakKeyDictionary()
        )
        """By event loop."""

    async def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Makes a call in a free thread, and returns or raises what it does."""
        async with self._free.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MOST)):
            return await in_daemon_thread(function, *arguments)
