"""Program and tests are written independently; where the tests fail, the coder sees what they say
and tries once more."""

import asyncio

from marl_plugins import find_programs


def code(text):
    """The last fenced block of Python, else the text itself."""
    return (find_programs(str(text)) or [str(text)])[-1]


async def run(task, roles, tools):
    program, tests = await asyncio.gather(
        roles.coder(problem=task.prompt, feedback=""), roles.tester(problem=task.prompt)
    )
    report = await tools.python(f"{code(program)}\n{code(tests)}")
    if report.ok:
        return program
    feedback = f"Your program:\n{program}\nTests say:\n{report.output[-300:]}"
    return await roles.coder(problem=task.prompt, feedback=feedback, after=[program, tests])
