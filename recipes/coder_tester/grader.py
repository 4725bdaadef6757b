"""An outcome for each role: whether the last program passes the hidden asserts, and whether the tests were right about the first.

The tester is not paid for tests that fail, nor for tests that pass, but for tests that say what the hidden asserts say.
"""

from marl_plugins.core.tools import ToolCall
from marl_plugins.tools.python import PythonToolConfig, find_programs, runner

run_limited = runner(PythonToolConfig(seconds=5, packages=False))  # as many programs at a time as there are cores


def code(text):
    return (find_programs(text) or [text])[-1]


async def passes(program, checks, trajectory):
    call = ToolCall(f"{code(program)}\n{code(checks)}", trajectory.task.id, trajectory.sample, trajectory.step)
    return (await run_limited(call)).ok


async def score_outcome(trajectory):
    hidden = trajectory.task.label
    first = next(a.text for a in trajectory.actions if a.role == "coder" and not a.parents)
    tests = next(a.text for a in trajectory.actions if a.role == "tester")
    first_is_right = await passes(first, hidden, trajectory)
    last_is_right = first_is_right if trajectory.answer == first else await passes(trajectory.answer, hidden, trajectory)
    tests_are_right = "assert" in tests and await passes(first, tests, trajectory) == first_is_right
    return {"coder": float(last_is_right), "tester": float(tests_are_right)}
