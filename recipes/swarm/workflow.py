"""One role, one answer."""


async def run(task, roles, tools):
    return await roles.solver(problem=task.prompt)
