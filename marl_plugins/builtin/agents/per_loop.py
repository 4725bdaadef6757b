"""Something that is open in one event loop, for as long as anybody there uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Opens one thing in each event loop.

    Args:
        opened: Gives it, as an asynchronous context that one task enters and leaves, whoever uses
            it.
    """

    def __init__(self, opened: Callable[[], AbstractAsyncContextManager[T]]):
        self._opened = opened
        self._open: dict[
            asyncio.AbstractEventLoop, tuple[asyncio.Task[None], asyncio.Future[T]]
        ] = {}
        self._users: dict[asyncio.AbstractEventLoop, int] = {}

    @asynccontextmanager
    async def used(self) -> AsyncIterator[T]:
        """Provides the loop's one.

        Raises:
            Exception: What opening it raises.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            ready: asyncio.Future[T] = loop.create_future()
            self._open[loop] = asyncio.create_task(self._run(ready)), ready
        task, ready = self._open[loop]
        self._users[loop] = self._users.get(loop, 0) + 1
        try:
            yield await asyncio.shield(ready)
        finally:
            self._users[loop] -= 1
            if not self._users[loop]:
                del self._users[loop], self._open[loop]
                task.cancel()
                await asyncio.wait([task])

    async def _run(self, ready: asyncio.Future[T]) -> None:
        try:
            async with self._opened() as opened:
                ready.set_result(opened)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
