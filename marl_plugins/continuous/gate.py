"""Requests and new weights in turn: weights wait for the answers that are being written, and later
requests for the weights."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


class LateGate:
    """The gate before the engines of one policy."""

    def __init__(self) -> None:
        self._inside = 0
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    async def ask(self, answer: Awaitable[T]) -> T:
        """Awaits an answer while the weights stay."""
        await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            return await answer
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    async def change(self, weights: Awaitable[T]) -> T:
        """Awaits new weights while nothing is asked."""
        self._open.clear()
        try:
            await self._empty.wait()
            return await weights
        finally:
            self._open.set()


class Gates(defaultdict[str, LateGate]):
    """The gates of a run, by policy."""

    def __init__(self) -> None:
        super().__init__(LateGate)
