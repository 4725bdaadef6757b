"""Requests are repeated where a failure may pass: after the time that the other side asks for, or
after random, growing pauses."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from marl_plugins.asking.request import Inquiry, MessageLayer, RequestTally, TransientFailure
from marl_plugins.core.failures import InfrastructureFailure

if TYPE_CHECKING:
    from tenacity import RetryCallState

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
        from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt

        attempts = AsyncRetrying(
            retry=retry_if_exception_type(TransientFailure),
            stop=stop_after_attempt(self.retries + 1),
            wait=_pause,
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    self.tally.counts["repeats"] += attempt.retry_state.attempt_number > 1
                    return await self.inner.send(inquiry)
        except TransientFailure as failure:
            raise InfrastructureFailure(
                failure.kind, f"{failure}, after {self.retries} repeats"
            ) from failure
        raise AssertionError("unreachable: the last attempt returns or raises")


def _pause(state: RetryCallState) -> float:
    failure = state.outcome.exception() if state.outcome else None
    return pause_after(
        state.attempt_number, failure.retry_after if isinstance(failure, TransientFailure) else None
    )


def pause_after(attempt: int, asked_for: float | None) -> float:
    """Returns the seconds before the next attempt: what was asked for, otherwise random and growing
    (full jitter)."""
    part = secrets.randbelow(1001) / 1000
    if asked_for is None:
        return part * min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2.0 ** min(attempt - 1, 10))
    # Everyone who is told the same time comes back spread out a little.
    return asked_for * (1 + 0.1 * part)
