"""Both debaters speak at the same time, round after round, each in a conversation in which it
remembers its report and the rounds before. A quote is checked against the report before anybody
else sees it, so that what the judge reads is true, if not all."""

import asyncio

ROUNDS = 2
OTHER = {"north": "south", "south": "north"}


def quote(text, report):
    """What others see of a debater's answer: its last line, if that is a line of its report."""
    said = text.strip().splitlines()[-1].strip(' "') if text.strip() else ""
    return said if said in report else "(nothing that is in the report)"


async def run(task, roles, tools):
    reports, turns = task.metadata["reports"], {side: [] for side in OTHER}

    def speak(side):
        """The side's next turn: the first one opens its conversation, the others continue it."""
        role = getattr(roles, side)
        if not turns[side]:
            return role(question=task.prompt, side=side, report="\n".join(reports[side]))
        theirs = turns[OTHER[side]][-1]
        return role(
            quote=quote(theirs.text, reports[OTHER[side]]),
            continues=turns[side][-1],
            after=[theirs],
        )

    for _ in range(ROUNDS):
        for side, said in zip(OTHER, await asyncio.gather(*map(speak, OTHER)), strict=True):
            turns[side].append(said)
    seen = {
        side: "\n".join(quote(turn.text, reports[side]) for turn in said)
        for side, said in turns.items()
    }
    return await roles.judge(
        question=task.prompt, **seen, after=[turn for said in turns.values() for turn in said]
    )
