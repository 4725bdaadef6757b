"""Reads what a program writes without waiting for it, and keeps the first and the last part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from marl_plugins.sandbox.remote import HeadAndTail

CHUNK_BYTES = 1 << 16


class Stream:
    """The reading end of a pipe, read as soon as there is something in it.

    Args:
        read: Called with the number of bytes each time.
    """

    def __init__(self, descriptor: int, limit: int, read: Callable[[int], object]):
        self.kept = HeadAndTail(limit)
        self._descriptor = descriptor
        self._read = read
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)
        self._loop.add_reader(descriptor, self._take)

    def text(self) -> str:
        """Returns what is kept, also of what is still in the pipe."""
        for _ in range(16):  # a pipe holds at most 1 MB
            if self._descriptor < 0 or not self._take():
                break
        return self.kept.text()

    def close(self) -> None:
        """Takes what is left in the pipe, and closes it."""
        self.text()
        if self._descriptor >= 0:
            self._end()

    def _take(self) -> bool:
        """Take what a look gives; whether there may be more."""
        try:
            chunk = os.read(self._descriptor, CHUNK_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._end()
            return False
        self.kept.add(chunk)
        self._read(len(chunk))
        return True

    def _end(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
