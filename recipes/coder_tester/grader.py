"""An outcome for each role: whether the last program passes the hidden asserts, and whether the tests were right about the first.

The tester is not paid for tests that fail, nor for tests that pass, but for tests that say what the hidden asserts say; tests that
a function passes which returns nothing are none. Programs and asserts are run apart: no program can say itself that it passes.
"""

from marl_plugins.sandbox import Checker

from .workflow import code

checker = Checker(seconds=5)  # as many programs at a time as there are cores


async def score_outcome(trajectory):
    hidden = trajectory.task.label
    first = next(a.text for a in trajectory.actions if a.role == "coder" and not a.parents)
    tests = code(next(a.text for a in trajectory.actions if a.role == "tester"))
    right = (await checker.passed(code(first), hidden)).passed
    last_is_right = right if trajectory.answer == first else (await checker.passed(code(trajectory.answer), hidden)).passed
    tests_are_right = await checker.fail_without(tests) and (await checker.passed(code(first), tests)).passed == right
    return {"coder": float(last_is_right), "tester": float(tests_are_right)}
