"""The way in which a judgement is asked for: one prompt with a nonce, and a second question where
the answer holds no verdict."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any

from marl_plugins.asking.request import (
    Form,
    Inquiry,
    Judgement,
    JudgeRequest,
    MessageLayer,
    RequestTally,
)
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.redaction import Redaction


def random_nonce(request: JudgeRequest) -> str:
    """Returns a word for a request: hexadecimal digits."""
    return secrets.token_hex(4)


@asynccontextmanager
async def in_time(seconds: float, prefix: str) -> AsyncIterator[None]:
    """Ends what takes longer than `--PREFIX.deadline` as an `InfrastructureFailure`."""
    try:
        async with asyncio.timeout(seconds) as deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise InfrastructureFailure(
            "coach_deadline", f"no judgement within {seconds:g} s (--{prefix}.deadline)"
        ) from None


class Questioner:
    """Writes the prompt of a request and reads the answer.

    Args:
        inner: Brings the answers.
        form: In which form they are asked for and read.
        prefix: Of the flags that messages name.
        deadline: Seconds of one judgement, with queueing, pauses, repeats and the second question.
        nonce: A word for each request.
        redaction: Of what is read of an answer.
        under_way: Entered for each judgement.
    """

    def __init__(
        self,
        inner: MessageLayer,
        form: Form,
        prefix: str,
        deadline: float,
        nonce: Callable[[JudgeRequest], str],
        tally: RequestTally,
        redaction: Redaction,
        under_way: AbstractAsyncContextManager[Any] | None = None,
    ):
        self.inner = inner
        self.form: Form = form
        self.prefix = prefix
        self.deadline = deadline
        self.nonce = nonce
        self.tally = tally
        self.redaction = redaction
        self.under_way = under_way or nullcontext()

    async def judge(self, request: JudgeRequest) -> Judgement:
        """Returns the judgement, within the deadline."""
        async with in_time(self.deadline, self.prefix), self.under_way:
            return await self._ask(request)

    async def _ask(self, request: JudgeRequest) -> Judgement:
        nonce, form = self.nonce(request), self.form
        messages = [{"role": "user", "content": request.prompt(nonce, form)}]
        inquiry = Inquiry(messages, form, request.schema, sampled=request.heard is not None)
        text, judgement = await self._answer(inquiry, request, nonce)
        if judgement is None:
            self.tally.counts["asked_again"] += 1
            inquiry.reply(text, request.again(nonce, form))
            text, judgement = await self._answer(inquiry, request, nonce)
        if judgement is None:
            second = self.redaction.text(text[:1000], 200)
            raise InfrastructureFailure(
                "coach_verdict", f"twice no verdict in the answer; the second: '{second}'"
            )
        assert inquiry.begun is not None
        self.tally.seconds.append(time.monotonic() - inquiry.begun)
        return {name: self.redaction.values(value) for name, value in judgement.items()}

    async def _answer(
        self, inquiry: Inquiry, request: JudgeRequest, nonce: str
    ) -> tuple[str, Judgement | None]:
        """The next answer, after those that have something done first, and the judgement in it."""
        text = await self.inner.send(inquiry)
        judgement = request.read(text, nonce, inquiry.form)
        while (
            judgement is None
            and request.work
            and (shown := await request.work(text, nonce)) is not None
        ):
            inquiry.reply(text, shown)
            text = await self.inner.send(inquiry)
            judgement = request.read(text, nonce, inquiry.form)
        if request.heard and inquiry.answer:
            request.heard(inquiry.answer, judgement)
        return text, judgement
