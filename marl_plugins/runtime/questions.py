"""Questions of plugins to policies of the run (`run.ask`): answered by their engines, the way every request is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, nearest
from marl_plugins.core.redaction import encodable
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.workflow import Call, Generate, Sampling
from marl_plugins.run import Ask


def make_ask(generate: Generate, chats: Mapping[str, ChatFormat], longest: Mapping[str, int], run_seed: int) -> Ask:
    """What `run.ask` calls.

    Args:
        chats, longest: Chat template and `--data.max_len` of each policy.
        run_seed: Part of every question's seed.
    """

    async def ask(policy: str, messages: Sequence[Mapping[str, str]], max_tokens: int) -> str:
        if policy not in chats:
            raise ConfigurationError(f"run.ask: there is no policy {policy!r} in this run{nearest(policy, chats)}")
        context = chats[policy].opening([{name: encodable(text) for name, text in m.items()} for m in messages])
        room = longest[policy] - len(context)
        if room < 1:
            raise InfrastructureFailure(
                "too_long",
                f"a question of {len(context)} tokens leaves policy {policy!r} no room in {longest[policy]} (--data.max_len)",
            )
        call = Call(
            policy=policy,
            context_ids=context,
            sampling=Sampling(temperature=0.0, top_p=1.0, max_new_tokens=max_tokens, max_len=longest[policy]),
            max_tokens=min(max_tokens, room),
            seed=derive_seed(run_seed, "ask", policy, json.dumps(context)),
            role="",
            task="",
            sample=0,
            path="",
            step=0,
        )
        return chats[policy].text((await generate(call)).ids)

    return ask
