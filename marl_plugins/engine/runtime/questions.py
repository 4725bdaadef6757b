"""Questions of plugins to policies of the run (`run.ask`): answered by their engines, the way every
request is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.roles import Call, Generate, Sampling
from marl_plugins.core.run import Answer, Ask
from marl_plugins.core.seeds import derive_seed


def make_ask(
    generate: Generate,
    chats: Mapping[str, ChatFormat],
    samplings: Mapping[str, Sampling],
    run_seed: int,
) -> Ask:
    """Makes what `run.ask` and `run.sample` call.

    Args:
        chats, samplings: Chat template of each policy, and how its actions are sampled.
        run_seed: Part of every question's seed.
    """

    async def ask(
        policy: str, messages: Sequence[Mapping[str, str]], max_tokens: int, sampled: bool
    ) -> Answer:
        if policy not in chats:
            raise ConfigurationError(
                Problem(
                    "policies.unknown",
                    at(key="run.ask"),
                    f"there is no policy {policy!r} in this run",
                    fix=meant(policy, chats),
                )
            )
        context = chats[policy].opening([{**message} for message in messages])
        sampling = replace(samplings[policy], max_new_tokens=max_tokens)
        room = sampling.max_len - len(context)
        if room < 1:
            raise InfrastructureFailure(
                "too_long",
                f"a question of {len(context)} tokens leaves policy {policy!r} no room in "
                f"{sampling.max_len} (--data.max_len)",
            )
        call = Call(
            policy=policy,
            context_ids=context,
            sampling=sampling if sampled else replace(sampling, temperature=0.0, top_p=1.0),
            max_tokens=min(max_tokens, room),
            seed=derive_seed(run_seed, "ask", policy, json.dumps(context)),
            role="",
            task="",
            sample=0,
            path="",
            step=0,
        )
        generation = await generate(call)
        return Answer(context, generation, chats[policy].text(generation.ids))

    return ask
