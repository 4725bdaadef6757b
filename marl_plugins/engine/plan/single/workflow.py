"""The workflow of an ordinary command line: one role answers once."""

from typing import Any


async def run(task: Any, roles: Any, tools: Any) -> Any:
    return await roles.agent(problem=task.prompt)
