"""How a judgement is asked for: one prompt with a nonce, and once more where the answer holds no verdict.

    judgement = await asker.judge(request)

Who answers is the only difference between the two kinds: an endpoint (client.py) or a policy of the run (policy.py).
"""

from __future__ import annotations

import asyncio
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from marl_plugins.core.failures import InfrastructureFailure

Message = dict[str, str]
Form = Literal["json", "text"]


@dataclass(frozen=True)
class Request:
    """One thing to be judged.

    Args:
        prompt: `(nonce, form)` to the whole prompt. The nonce is a word that nobody who wrote what is judged can know; it
            marks the quoted part and the lines of the verdict.
        parse: `(answer, nonce, form)` to the judgement as JSON values, or None where the answer holds none.
        again: `(nonce, form)` to what is said when it held none.
        schema: JSON schema of the answer, for structured output.
    """

    prompt: Callable[[str, str], str]
    parse: Callable[[str, str, str], dict[str, Any] | None]
    again: Callable[[str, str], str]
    schema: Mapping[str, Any]


@dataclass
class Call:
    """One judgement while it is asked for; `begun` is when its first request was sent."""

    messages: list[Message]
    schema: Mapping[str, Any]
    begun: float | None = None


class Asker(ABC):
    """Asks for judgements. One for the whole run.

    Args:
        form: In which form answers are asked for and read.
        deadline: Seconds of one judgement, all its requests included.
    """

    counted: ClassVar[tuple[str, ...]] = ("requests", "asked_again")
    """What `counts` may hold, for the metrics."""

    def __init__(self, form: Form, deadline: float):
        self.form: Form = form
        self.deadline = deadline
        self.counts: Counter[str] = Counter()
        self.latencies: list[float] = []

    @abstractmethod
    async def answer(self, call: Call) -> str:
        """The answer to `call.messages`; sets `call.begun` when it is first asked for.

        Raises:
            InfrastructureFailure: It cannot be had.
            RunPaused: None can be had from now on.
        """

    def nonce(self, request: Request) -> str:
        """A word for this request: hexadecimal digits."""
        return secrets.token_hex(4)

    def probe(self, request: Request) -> None:  # noqa: B027  # not abstract: engines that do not run yet are not tried
        """Try it out before anything is started, where that can be done.

        Raises:
            ConfigurationError: Nobody answers, or not in the form that was asked for.
        """

    def take(self) -> tuple[Counter[str], list[float]]:
        """Counts, and seconds per judgement from its first request on, since the last call."""
        counts, latencies = self.counts, self.latencies
        self.counts, self.latencies = Counter(), []
        return counts, latencies

    async def judge(self, request: Request) -> dict[str, Any]:
        """The judgement.

        Raises:
            InfrastructureFailure: It cannot be had.
            RunPaused: No judgement can be had from now on.
        """
        call = Call([], request.schema)
        try:
            async with asyncio.timeout(self.deadline) as deadline:
                judgement = await self._asked(request, call)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise InfrastructureFailure(
                "coach_deadline", f"no judgement within {self.deadline:g} s (--coach.deadline)"
            ) from None
        assert call.begun is not None
        self.latencies.append(time.monotonic() - call.begun)
        return judgement

    async def _asked(self, request: Request, call: Call) -> dict[str, Any]:
        nonce = self.nonce(request)
        call.messages.append({"role": "user", "content": request.prompt(nonce, self.form)})
        text = await self.answer(call)
        judgement = request.parse(text, nonce, self.form)
        if judgement is None:
            self.counts["asked_again"] += 1
            call.messages += [
                {"role": "assistant", "content": text[:4000] or "..."},
                {"role": "user", "content": request.again(nonce, self.form)},
            ]
            text = await self.answer(call)
            judgement = request.parse(text, nonce, self.form)
        if judgement is None:
            raise InfrastructureFailure("coach_verdict", f"twice no verdict in the answer; the second: {text[:200]!r}")
        return judgement
