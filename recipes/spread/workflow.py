"""Rounds in which the agents of both sides speak to people at the same time, and see what the
rounds before have come to."""

import asyncio

from .network import AGENTS, ROUNDS, Network, person_of, written


async def run(task, roles, tools):
    network, rounds, last = Network(task.id), [], []
    for number in range(ROUNDS):
        last = await asyncio.gather(
            *(getattr(roles, role)(**network.fields(role, number), after=last) for role in AGENTS)
        )
        met = network.meetings[number]
        rounds.append(
            {
                role: person_of(answer.text, met[role])
                for role, answer in zip(AGENTS, last, strict=True)
            }
        )
        network.speak(rounds[-1])
    return written(rounds)
