"""Answers for a policy whose model somebody else serves, in the place of engines.

The controller's side of a policy knows ids alone. Those of an external policy are the bytes of its
conversations (`WORDS`), in which the end of a message cannot be spelled: so they are messages again
here, exactly as they were shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

from marl_plugins.asking.askers import PolicyAskers
from marl_plugins.asking.request import Message
from marl_plugins.asking.speaker import Turn
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import InfrastructureFailure, RunPaused
from marl_plugins.core.roles import Call
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.processes.request_queue import Choose


class ServedEngines(EnginePool):
    """Asks an endpoint; there is no engine, and nothing to choose from.

    Args:
        chat: The policy's chat format.
    """

    def __init__(self, run: Run, chat: ChatFormat):
        seconds = run.recipe.limits.silence_seconds
        super().__init__(chat.policy, [], _none, _none, RestartBudget(0), seconds, 1)
        self.chat = chat
        self.asker = run.state(PolicyAskers)[chat.policy]

    async def generate(self, call: Call, choose: Choose) -> Generation:
        """Answers a request with the model's words, without log-probs.

        Raises:
            InfrastructureFailure: The endpoint is unavailable, or will not answer this.
            RunPaused: It will not answer any more: the budget is spent, a key is refused.
        """
        sampling = call.sampling
        body = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # Else what is left of a length in bytes, which no endpoint takes.
            "max_tokens": call.max_tokens if sampling.max_new_tokens else None,
            "seed": call.seed % 2**31,
            **({"stop": list(sampling.stop)} if sampling.stop else {}),
        }
        try:
            said = await self.asker.judge(Turn([*messages_of(self.chat, call.context_ids)], body))
        except InfrastructureFailure as failure:
            if spent := self.asker.spent():
                raise RunPaused(f"the budget of policy {self.policy!r} is spent: {spent}") from None
            kind = failure.kind.replace("coach_", "endpoint_")
            raise InfrastructureFailure(kind, f"policy {self.policy!r}: {failure}") from failure
        cut = said["finish"] == "length"
        ids = self.chat.foreign.encode(self.chat.foreign.hide(said["text"]))
        ids += () if cut else self.chat.end_of_turn
        return Generation(tuple(ids), (), "length" if cut else "stop", call.policy, 0)


def messages_of(chat: ChatFormat, context: Sequence[int]) -> Iterator[Message]:
    """Yields the messages of a context, whose generation prompt is open."""
    (end,) = chat.end_of_turn
    begin = 0
    for place, number in enumerate(context):
        if number == end:
            text = chat.tokenizer.decode(context[begin:place], skip_special_tokens=False)
            role, _, content = text.lstrip("\n").partition("\n")
            yield {"role": role.strip("<>"), "content": content}
            begin = place + 1


def _none(*arguments: object) -> NoReturn:
    raise AssertionError("an external policy has no engine that could be started")
