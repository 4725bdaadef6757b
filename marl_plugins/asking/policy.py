"""A policy of the run answers: its own engines, in the text form, with its own chat template.

Everything is a function of the question and the run's seed, the nonce included, so that a resumed
run repeats. The nonce is
no weaker for it: it depends on every word that is judged, and on the rest of a prompt that the
agent never sees.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from marl_plugins.asking.request import Form, Inquiry, JudgeRequest, RequestTally
from marl_plugins.core.seeds import derive_seed

if TYPE_CHECKING:
    from marl_plugins.core.run import Run


class PolicyTransport:
    """Asks a policy through `run.ask`, or `run.sample` where its answers are to be trained on.

    Args:
        policy: Its name.
        max_tokens: Length of one answer.
    """

    def __init__(self, run: Run, policy: str, max_tokens: int, tally: RequestTally):
        self.run = run
        self.policy = policy
        self.max_tokens = max_tokens
        self.tally = tally

    async def send(self, inquiry: Inquiry) -> str:
        """Returns the policy's answer.

        Raises:
            InfrastructureFailure: No engine is left, or the question is too long for the policy.
        """
        self.tally.counts["requests"] += 1
        inquiry.begun = inquiry.begun or time.monotonic()
        if not inquiry.sampled:
            return await self.run.ask(self.policy, inquiry.messages, max_tokens=self.max_tokens)
        inquiry.answer = await self.run.sample(
            self.policy, inquiry.messages, max_tokens=self.max_tokens
        )
        return inquiry.answer.text

    async def probe(self, request: JudgeRequest) -> Form:
        """Returns the form; engines that do not run yet cannot be tried."""
        return "text"

    async def close(self) -> None:
        """Does nothing: the engines are the run's."""


def derived_nonce(run_seed: int) -> Callable[[JudgeRequest], str]:
    """Returns a word for each request, derived from it and the run's seed."""

    def nonce(request: JudgeRequest) -> str:
        # in ASCII: a text may hold half a surrogate pair
        question = json.dumps(request.prompt("", "text"))
        return f"{derive_seed(run_seed, 'nonce', question):08x}"

    return nonce
