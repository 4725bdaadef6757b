"""One role; its tool is called, and the next turn begun, wherever an answer holds a call."""


async def run(task, roles, tools):
    return await roles.clerk(order=task.prompt)
