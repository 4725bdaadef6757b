"""Small programs that read two numbers, with tests as LiveCodeBench has them: hidden ones as the
label, and one that is shown."""

import json
import random

from marl_plugins import Task

KINDS = {
    "their sum": lambda a, b: a + b,
    "their product": lambda a, b: a * b,
    "the larger of them": max,
    "all numbers from the first to the second, a line each": lambda a, b: "\n".join(
        map(str, range(a, b + 1))
    ),
}
"""What is printed of two numbers."""
HIDDEN = 5


def test(kind, a, b):
    said = f"{KINDS[kind](a, b)}\n"
    return {"testtype": "stdin", "input": f"{a} {b}\n", "output": said}


def load(split):
    rng, tasks = random.Random(f"stdin-{split}"), []
    for number in range(200 if split == "train" else 40):
        kind = rng.choice(list(KINDS))
        pairs = [sorted(rng.sample(range(20), 2)) for _ in range(1 + HIDDEN)]
        shown, *hidden = (test(kind, *pair) for pair in pairs)
        prompt = f"Two numbers stand on one line. Print {kind}."
        public = {"public_test_cases": json.dumps([shown])}
        tasks.append(Task(f"{split}-{number}", prompt, json.dumps(hidden), public))
    return tasks
