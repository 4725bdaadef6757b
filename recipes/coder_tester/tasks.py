"""Small functions of one number, with hidden asserts as labels."""

import random

from marl_plugins import Task

KINDS = (
    ("f(x) is x times {a} plus {b}", "x * {a} + {b}"),
    ("f(x) is x times {a} minus {b}", "x * {a} - {b}"),
    ("f(x) is the larger of x and {a}, plus {b}", "max(x, {a}) + {b}"),
    ("f(x) is the smaller of x and {a}, times {b}", "min(x, {a}) * {b}"),
)
INPUTS = (0, 1, 4, 7, 13)


def task(kind, a, b):
    text, expression = (part.format(a=a, b=b) for part in KINDS[kind])
    asserts = "\n".join(
        f"assert f({x}) == {eval(expression)}" for x in INPUTS
    )  # our own expression
    return Task(f"{kind}-{a}-{b}", text, asserts, {"expression": expression})


def load(split):
    """All kinds with all digits from 2 to 9; every fifth is held out."""
    cases = [(kind, a, b) for kind in range(len(KINDS)) for a in range(2, 10) for b in range(2, 10)]
    random.Random("coder_tester").shuffle(cases)
    return [task(*case) for n, case in enumerate(cases) if (n % 5 == 0) == (split == "eval")]
