"""Questions of plugins to policies of the run (`run.ask`): answered by their engines, on the way that every request takes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.manager import Plugins
from marl_plugins.runtime.engines import EnginePool


class Questions:
    """Asks the policies of a run.

    Args:
        pools, chats, longest: Of each policy its engines, its chat template and `--data.max_len`.
        run_seed: Part of every question's seed.
    """

    def __init__(
        self,
        plugins: Plugins,
        pools: Mapping[str, EnginePool],
        chats: Mapping[str, ChatFormat],
        longest: Mapping[str, int],
        run_seed: int,
    ):
        self.hook = plugins.hook
        self.pools = pools
        self.chats = chats
        self.longest = longest
        self.run_seed = run_seed

    async def ask(self, policy: str, messages: Sequence[Mapping[str, str]], max_tokens: int) -> str:
        """See `Run.ask`."""
        context = self.chats[policy].opening([{name: encodable(text) for name, text in m.items()} for m in messages])
        longest = self.longest[policy]
        room = longest - len(context)
        if room < 1:
            raise InfrastructureFailure(
                "too_long",
                f"a question of {len(context)} tokens leaves policy {policy!r} no room in {longest} (--data.max_len)",
            )
        call = Call(
            policy=policy,
            context_ids=context,
            sampling=Sampling(temperature=0.0, top_p=1.0, max_new_tokens=max_tokens, max_len=longest),
            max_tokens=min(max_tokens, room),
            seed=derive_seed(self.run_seed, "ask", policy, json.dumps(context)),
            role="",
            task="",
            sample=0,
            path="",
            step=0,
        )
        generation: Generation = await self.hook.marl_generate(call=call, engines=self.pools[policy])
        return self.chats[policy].text(generation.ids)


def encodable(text: str) -> str:
    """A text that a tokenizer takes: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
