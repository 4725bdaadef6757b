"""Program and tests are written independently; where the tests fail, the coder sees what they say
and tries once more."""

import asyncio
import json

from marl_plugins import find_programs
from marl_plugins.sandbox import asserts_of, prepared


def code(text):
    """The last fenced block of Python, else the text itself."""
    return (find_programs(str(text)) or [str(text)])[-1]


def hidden(task):
    """The task's tests as asserts, in whichever layout its label has them."""
    return "\n".join(asserts_of(task.label, function(task)))


def shown(task):
    """The tests that agents may see, where the data set has such."""
    public = task.metadata.get("public_test_cases")
    return ["\n".join(asserts_of(public, function(task)))] if public else []


def function(task):
    """The name of the function that LiveCodeBench's tests call; empty for a program."""
    return json.loads(task.metadata.get("metadata") or "{}").get("func_name", "")


async def run(task, roles, tools):
    program, tests = await asyncio.gather(
        roles.coder(problem=task.prompt, feedback=""), roles.tester(problem=task.prompt)
    )
    called = prepared(code(program), "\n".join([hidden(task), *shown(task)]))
    report = await tools.python("\n".join([called, code(tests), *shown(task)]))
    if report.ok:
        return program
    feedback = f"Your program:\n{program}\nTests say:\n{report.output[-300:]}"
    return await roles.coder(problem=task.prompt, feedback=feedback, after=[program, tests])
