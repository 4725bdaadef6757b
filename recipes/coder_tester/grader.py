"""An outcome for each role: whether the last program passes the hidden asserts, and whether the tests tell right from wrong.

The tester is paid for tests that a right function passes and that each of several wrong ones fails, whatever the coder has
written: tests that ask for nothing, or for too much, are worth nothing. Programs and tests are run apart: no program can say itself
that it passes.
"""

import re

from marl_plugins.sandbox import Checker

from .workflow import code

checker = Checker(seconds=5)  # as many programs at a time as there are cores
WRONG = ("right(*given) + 1", "0", "given[0]", "None")
"""What functions return that tests should find wrong."""
FUNCTION = "def {name}(*given, right={name}):\n    return {returns}\n"
"""Begins tests with a function in the place of the right one; every test has one, so that none can tell by it."""
ASKED = re.compile(r"\bassert (\w+)\(")


async def score_outcome(trajectory):
    task, last = trajectory.task, trajectory.answer
    first = next(a.text for a in trajectory.actions if a.role == "coder" and not a.parents)
    tests = code(next(a.text for a in trajectory.actions if a.role == "tester"))
    right = (await checker.passed(code(first), task.label)).passed
    last_is_right = right if last == first else (await checker.passed(code(last), task.label)).passed
    known = next((code(one) for one, passes in ((first, right), (last, last_is_right)) if passes), None)
    return {"coder": float(last_is_right), "tester": float(await tell(tests, task, reference(task) or known))}


def reference(task):
    """The right function, or None: a task of a data set has only its asserts, and there the coder's program is it, if they pass."""
    expression = task.metadata.get("expression")
    return expression and f"def f(x):\n    return {expression}"


async def tell(tests, task, program):
    """Whether tests pass with the right program, and with no wrong function in the place of its own."""
    if program is None:
        return False
    asked = ASKED.search(task.label)
    name = asked[1] if asked else "f"
    kinds = [FUNCTION.format(name=name, returns=returns) + tests for returns in ("right(*given)", *WRONG)]
    return await checker.each_passed(program, kinds) == [True, *[False] * len(WRONG)]
