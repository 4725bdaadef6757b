"""Time that does not count against a deadline: a grader that waits in a queue has not yet begun to
grade, nor has a request that waits for an engine begun to be answered.

with clock_of(deadline) as clock:   around all of it, by who set the deadline
    with against(clock):            around the grader, in whatever task
        async with not_counted():   around the wait, by whoever has a queue
            await slots.acquire()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar


class Clock:
    """A deadline that stands still while anything waits."""

    def __init__(self, deadline: asyncio.Timeout):
        self.deadline: asyncio.Timeout | None = deadline
        """None once what it bounds has ended."""
        self.waiting = 0
        self.left: float | None = None
        """Seconds until the deadline, once nothing waits; None where it does not stand still."""

    def stop(self) -> None:
        deadline = self.deadline if self.deadline and not self.deadline.expired() else None
        if self.waiting == 0 and deadline and (when := deadline.when()) is not None:
            self.left = when - asyncio.get_running_loop().time()
            deadline.reschedule(None)
        self.waiting += 1

    def go_on(self) -> None:
        self.waiting -= 1
        if self.waiting == 0 and self.deadline and self.left is not None:
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


_CLOCK: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextmanager
def clock_of(deadline: asyncio.Timeout) -> Iterator[Clock]:
    """Provides the clock of a deadline that has been entered."""
    clock = Clock(deadline)
    try:
        yield clock
    finally:
        clock.deadline = None  # for what outlives it


@contextmanager
def against(clock: Clock | None) -> Iterator[None]:
    """Makes `not_counted` in what is awaited inside stop a clock."""
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
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
