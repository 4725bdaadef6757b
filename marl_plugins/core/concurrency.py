"""Awaitables that stand and fall together."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from typing import Any


async def all_of(work: Iterable[Any]) -> list[Any]:
    """Awaits all at once; when one fails the others are cancelled, and its exception is raised."""
    tasks = [asyncio.ensure_future(w) for w in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        await end(tasks)


async def end(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancels what has not finished, and waits for that; what any of it raises is dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
