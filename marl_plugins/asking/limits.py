"""Limits of how much is asked at once, per minute, and altogether."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.reading import UNREADABLE
from marl_plugins.asking.request import Inquiry, MessageLayer
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.problems import Problem, at


class AskingLimits:
    """Sends a request when the limits allow it; a pause before a repeat is outside, and holds no
    slot.

    Args:
        inner: Sends it.
        budget: Once it is spent, nothing more is sent.
        endpoint: Whose `concurrency` and `per_minute` are kept.
    """

    def __init__(self, inner: MessageLayer, budget: SpendingBudget, endpoint: CoachEndpoint):
        self.inner = inner
        self.budget = budget
        self.per_minute = endpoint.per_minute
        self.under_way = asyncio.Semaphore(2 * endpoint.concurrency)
        """Held by each judgement, so that a repeat does not queue behind the first requests of a
        whole step."""
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._turn, self._next = asyncio.Lock(), 0.0

    async def send(self, inquiry: Inquiry) -> str:
        async with self._slots:
            if self.per_minute is not None:
                await self._pause(60.0 / self.per_minute)
            if spent := self.budget.spent():
                raise InfrastructureFailure("coach_budget", f"spent: {spent}")
            return await self.inner.send(inquiry)

    async def _pause(self, seconds: float) -> None:
        """Waits until the request before has begun so many seconds ago: one at a time, not a
        minute's worth at once."""
        now = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(max(0.0, self._next - now()))
            self._next = now() + seconds


@dataclass
class SpendingBudget:
    """The tokens and dollars that may be spent in a run, its resumed and its killed parts included.

    Args:
        prefix: Of the flags that messages name.
        tokens: Of prompts and answers together; None for no limit.
        dollars: None for no limit.
        price: Dollars per million tokens of prompts and of answers.
    """

    prefix: str
    tokens: int | None = None
    dollars: float | None = None
    price: tuple[float, float] = (0.0, 0.0)
    spent_in: int = 0
    spent_out: int = 0
    file: Path | None = None

    @property
    def limited(self) -> bool:
        return self.tokens is not None or self.dollars is not None

    @property
    def cost(self) -> float:
        return (self.spent_in * self.price[0] + self.spent_out * self.price[1]) / 1e6

    def spent(self) -> str | None:
        """Returns the limit that is used up, with its flag, or None. Requests in flight may still
        exceed it."""
        if self.tokens is not None and self.spent_in + self.spent_out >= self.tokens:
            return (
                f"{self.spent_in + self.spent_out} tokens of --{self.prefix}.budget_tokens "
                f"{self.tokens}"
            )
        if self.dollars is not None and self.cost >= self.dollars:
            return f"${self.cost:.2f} of --{self.prefix}.budget {self.dollars:g}"
        return None

    def open(self, file: Path, resumed: bool) -> None:
        """Keeps the account in a file; a resumed run continues the one that is there.

        Raises:
            ConfigurationError: The file cannot be read.
        """
        self.file = file
        if resumed and file.exists():
            try:
                kept = json.loads(file.read_text(encoding="utf-8"))
                self.spent_in, self.spent_out = int(kept["tokens_in"]), int(kept["tokens_out"])
            except (OSError, *UNREADABLE) as error:
                raise ConfigurationError(
                    Problem(
                        "asking.account",
                        at(file=file),
                        f"the {self.prefix}'s account cannot be read: {error}",
                        fix="correct it from the provider's bill, or delete it to count from 0",
                    )
                ) from None

    def add(self, tokens_in: int, tokens_out: int) -> None:
        self.spent_in += tokens_in
        self.spent_out += tokens_out
        if self.file is None:
            return
        fresh = self.file.with_suffix(".new")
        try:
            fresh.write_text(
                json.dumps({"tokens_in": self.spent_in, "tokens_out": self.spent_out}),
                encoding="utf-8",
            )
            os.replace(fresh, self.file)
        except OSError as error:
            raise RunPaused(
                f"{self.file}: what the {self.prefix} spends cannot be kept: {error.strerror}"
            ) from None
