"""Five answer without seeing each other; one sees the five answers and decides."""

import asyncio

VOTERS = 5


async def run(task, roles, tools):
    votes = await asyncio.gather(*(roles.voter(problem=task.prompt) for _ in range(VOTERS)))
    return await roles.decider(problem=task.prompt, votes=votes)
