"""An outcome for each role: whether the last program passes the hidden asserts, and whether the
tests tell right from wrong.

The tester is paid for tests that a right function passes and that each of several wrong ones fails,
whatever the coder has
written: tests that ask for nothing, or for too much, are worth nothing. Programs and tests are run
apart: no program can say itself that it passes. Each function meets the tests in processes of its
own, as a program, so tests know what it answers and no more; and they are only what the prompt asks
for (`plain`), so that each assert is about one value.
"""

import ast
import re

from marl_plugins.sandbox import Checker, prepared

from .workflow import code, hidden

checker = Checker(seconds=5)  # as many programs at a time as there are cores
WRONG = ("right(*given) + 1", "0", "given[0]", "None")
"""What functions return that tests should find wrong."""
FUNCTION = "\n\ndef {name}(*given, right={name}):\n    return {returns}\n"
"""Ends a program with another function in the place of its own."""
ASKED = re.compile(r"\bassert (\w+)\(")
STATEMENTS = (ast.Assert, ast.For, ast.FunctionDef, ast.Assign, ast.Expr, ast.Pass)
"""What tests consist of. With a branch or an exception, a test could pass for several values."""
NEVER = (ast.Attribute, ast.Lambda, ast.NamedExpr)
HELPERS = {
    "range",
    "enumerate",
    "zip",
    "list",
    "tuple",
    "set",
    "dict",
    "sorted",
    "len",
    "sum",
    "abs",
    "int",
    "float",
    "str",
}
"""Functions that tests may call."""


async def score_outcome(trajectory):
    task, last = trajectory.task, trajectory.answer
    first = next(a.text for a in trajectory.actions if a.role == "coder" and not a.parents)
    tests = code(next(a.text for a in trajectory.actions if a.role == "tester"))
    checks = hidden(task)
    programs = {one: prepared(code(one), checks) for one in (first, last)}
    passes = {
        one: (await checker.passed(program, checks)).passed for one, program in programs.items()
    }
    last_is_right = passes[last]
    known = next((programs[one] for one in (first, last) if passes[one]), None)
    return {
        "coder": float(last_is_right),
        "tester": float(await tell(tests, task, reference(task) or known)),
    }


def reference(task):
    """The right function, or None: a task of a data set has only its asserts, and there the coder's
    program is it, if they pass."""
    expression = task.metadata.get("expression")
    return expression and f"def f(x):\n    return {expression}"


async def tell(tests, task, program):
    """Whether tests pass with the right program, and with no wrong function in the place of its
    own."""
    asked = ASKED.search(hidden(task))
    name = asked[1] if asked else "f"
    if (
        program is None
        or not plain(tests, name)
        or not (await checker.passed(program, tests)).passed
    ):
        return False
    for returns in WRONG:
        if (
            await checker.passed(program + FUNCTION.format(name=name, returns=returns), tests)
        ).passed:
            return False
    return True


def plain(tests, name):
    """Whether tests compare what the function returns, and do nothing else with it:
    `assert f(INPUT) == OUTPUT`, also in a loop or in a function `test_*`, and with `got = f(INPUT)`
    before."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    tree.body = [
        one
        for one in tree.body
        if not (isinstance(one, ast.If) and ast.unparse(one.test) == "__name__ == '__main__'")
    ]
    nodes = list(ast.walk(tree))
    if any(
        isinstance(one, (ast.Yield, ast.YieldFrom)) for one in nodes
    ):  # in a message it says that an assert fails, and goes on
        return False
    for one in nodes:
        if isinstance(one, ast.Assert):
            one.msg = None  # where it is looked at, the test has failed
    nodes = list(ast.walk(tree))
    keeping = [
        one
        for one in nodes
        if isinstance(one, ast.Assign) and is_call(one.value, name) and is_name(*one.targets)
    ]
    kept = {one.targets[0].id for one in keeping}
    compared = [
        part
        for one in nodes
        if isinstance(one, ast.Assert)
        for part in parts_compared(one.test, name, kept)
    ]
    fine = {id(one.func if isinstance(one, ast.Call) else one) for one in compared}
    fine |= {id(part) for one in keeping for part in (one.targets[0], one.value.func)}
    tests_too = {one.name for one in nodes if isinstance(one, ast.FunctionDef)}
    bound = tests_too | {one.arg for one in nodes if isinstance(one, ast.arg)}
    return bool(compared and not kept & bound) and all(
        not (isinstance(one, ast.stmt) and not isinstance(one, STATEMENTS))
        and not isinstance(one, NEVER)
        and not (
            isinstance(one, ast.Name)
            and (one.id[0] == "_" or (one.id in {name, *kept} and id(one) not in fine))
        )
        and not (
            isinstance(one, ast.Call)
            and id(one.func) not in fine
            and called(one) not in HELPERS | tests_too
        )
        for one in nodes
    )


def parts_compared(test, name, kept):
    """Calls of the function, and names that keep what it has returned, that an assert compares by
    `==` with something else."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return [found for part in test.values for found in parts_compared(part, name, kept)]
    if not (
        isinstance(test, ast.Compare)
        and len(test.ops) == 1
        and isinstance(test.ops[0], (ast.Eq, ast.Is))
    ):
        return []
    sides = test.left, test.comparators[0]
    found = [side for side in sides if is_call(side, name) or (is_name(side) and side.id in kept)]
    return found if len(found) == 1 else []


def is_call(node, name):
    return isinstance(node, ast.Call) and called(node) == name


def is_name(*nodes):
    return len(nodes) == 1 and isinstance(nodes[0], ast.Name)


def called(call):
    return call.func.id if isinstance(call.func, ast.Name) else None
