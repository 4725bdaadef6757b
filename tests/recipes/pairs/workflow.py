"""A proposal and two remarks on it, one by an earlier self of the critic."""


async def run(task, roles, tools):
    proposal = await roles.proposer(problem=task.prompt)
    await roles.critic(proposal=proposal)
    await roles.earlier_critic(proposal=proposal)
    return proposal
