"""Requests are repeated where a failure may pass: after the time that the other side asks for, or
after random, growing pauses."""

from __future__ import annotations

import asyncio
import itertools
import secrets

from marl_plugins.asking.request import Inquiry, MessageLayer, RequestTally, TransientFailure
from marl_plugins.core.failures import InfrastructureFailure

FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 30.0
"""Seconds: a repeat waits a random part of the first, then of twice that, ... up to the longest."""


class Repeats:
    """Repeats a request that failed in a way that may pass.

    Args:
        inner: Sends one request.
        retries: How often it is repeated.
    """

    def __init__(self, inner: MessageLayer, retries: int, tally: RequestTally):
        self.inner = inner
        self.retries = retries
        self.tally = tally

    async def send(self, inquiry: Inquiry) -> str:
        for attempt in itertools.count(1):
            try:
                return await self.inner.send(inquiry)
            except TransientFailure as failure:
                if attempt > self.retries:
                    raise InfrastructureFailure(
                        failure.kind, f"{failure}, after {self.retries} repeats"
                    ) from failure
                pause = pause_after(attempt, failure.retry_after)
            await asyncio.sleep(pause)
            self.tally.counts["repeats"] += 1
        raise AssertionError("unreachable: attempts are not counted")


def pause_after(attempt: int, asked_for: float | None) -> float:
    """Returns the seconds before the next attempt: what was asked for, otherwise random and growing
    (full jitter)."""
    part = secrets.randbelow(1001) / 1000
    if asked_for is None:
        return part * min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 10))
    # Everyone who is told the same time comes back spread out a little.
    return asked_for * (1 + 0.1 * part)
