"""A frozen policy of the run as the coach: its own engines answer, in the text form, with its own chat template.

Everything is a function of the question and the run's seed, the nonce included, so that a resumed run repeats. The nonce is
none the worse for it: it hangs on every word that is judged, and on the rest of a prompt that the agent never sees.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from marl_plugins.asking.asker import Asker, Call, Request
from marl_plugins.core.seeds import derive_seed

if TYPE_CHECKING:
    from marl_plugins.run import Run


class PolicyAsker(Asker):
    """Asks a policy of the run; how many at once is left to its engines.

    Args:
        policy: Its name.
        max_tokens: Length of one answer.
    """

    def __init__(self, run: Run, policy: str, max_tokens: int, deadline: float):
        super().__init__("text", deadline)
        self.run = run
        self.policy = policy
        self.max_tokens = max_tokens

    def nonce(self, request: Request) -> str:
        question = json.dumps(request.prompt("", self.form))  # in ASCII: a text may hold half a surrogate pair
        return f"{derive_seed(self.run.args.train.seed, 'nonce', question):08x}"

    async def answer(self, call: Call) -> str:
        """The policy's answer.

        Raises:
            InfrastructureFailure: No engine is left, or the question is too long for the policy.
        """
        self.counts["requests"] += 1
        call.begun = call.begun or time.monotonic()
        return await self.run.ask(self.policy, call.messages, max_tokens=self.max_tokens)
