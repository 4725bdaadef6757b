"""Time that does not count against a deadline: a grader that waits in a queue has not yet begun to
grade.

async with counted(deadline):       around the grader, by who set the deadline
    async with not_counted():       around the wait, by whoever has a queue
        await slots.acquire()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar


class _Clock:
    """A deadline that stands still while anything waits."""

    def __init__(self, deadline: asyncio.Timeout):
        self.deadline = deadline
        self.waiting = 0
        self.left: float | None = None
        """Seconds until the deadline, once nothing waits; None where it does not stand still."""

    def stop(self) -> None:
        if self.waiting == 0 and (when := self.deadline.when()) is not None:
            self.left = when - asyncio.get_running_loop().time()
            self.deadline.reschedule(None)
        self.waiting += 1

    def go_on(self) -> None:
        self.waiting -= 1
        if self.waiting == 0 and self.left is not None:
            self.deadline.reschedule(asyncio.get_running_loop().time() + self.left)
            self.left = None


@asynccontextmanager
async def in_turn(slots: asyncio.Semaphore) -> AsyncIterator[None]:
    """Holds one of the slots; the wait for it does not count."""
    async with not_counted():
        await slots.acquire()
    try:
        yield
    finally:
        slots.release()


_CLOCK: ContextVar[_Clock | None] = ContextVar("clock", default=None)


@asynccontextmanager
async def counted(deadline: asyncio.Timeout) -> AsyncIterator[None]:
    """Makes `not_counted` in what is awaited inside stop the clock of a deadline that has been
    entered."""
    clock = _Clock(deadline)
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        clock.left = None  # for what outlives it
        _CLOCK.reset(token)


@asynccontextmanager
async def not_counted() -> AsyncIterator[None]:
    """Stops the clock of the deadline around it, if there is one, until its end."""
    clock = _CLOCK.get()
    if clock is None:
        yield
        return
    clock.stop()
    try:
        yield
    finally:
        clock.go_on()
