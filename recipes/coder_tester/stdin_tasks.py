"""Small programs that read two numbers, with tests as LiveCodeBench has them: hidden ones as the
label, and one that is shown."""

import json
import random

from marl_plugins import Task

KINDS = {
    "their sum plus {n}": lambda a, b, n: a + b + n,
    "their product less {n}": lambda a, b, n: a * b - n,
    "the larger of them times {n}": lambda a, b, n: max(a, b) * n,
    "all multiples of {n} from the first to the second, a line each, and then 0": lambda a, b, n: (
        "\n".join(str(x) for x in (*range(a, b + 1), 0) if x % n == 0)
    ),
}
"""What is printed of two numbers."""
HIDDEN = 5


def test(kind, n, a, b):
    return {"testtype": "stdin", "input": f"{a} {b}\n", "output": f"{KINDS[kind](a, b, n)}\n"}


def task(kind, n, rng):
    pairs = [sorted(rng.sample(range(1, 40), 2)) for _ in range(1 + HIDDEN)]
    shown, *hidden = (test(kind, n, *pair) for pair in pairs)
    prompt = f"Two numbers stand on one line. Print {kind.format(n=n)}."
    public = {"public_test_cases": json.dumps([shown])}
    return Task(f"{list(KINDS).index(kind)}-{n}", prompt, json.dumps(hidden), public)


def load(split):
    """All kinds with all numbers from 2 to 60; every fifth is held out."""
    rng = random.Random("stdin")
    cases = [(kind, n) for kind in KINDS for n in range(2, 61)]
    rng.shuffle(cases)
    tasks = [task(*case, rng) for case in cases]
    return [one for n, one in enumerate(tasks) if (n % 5 == 0) == (split == "eval")]
