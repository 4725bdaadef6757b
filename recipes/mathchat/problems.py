"""Word problems with one or two operations, generated: no data set is needed to try the recipe.

Train and eval never share a calculation: which split a problem belongs to is a function of its
expression alone.
"""

import random
import zlib

from marl_plugins import Task

NAMES = ("Ann", "Tom", "Mia", "Ben", "Eva", "Max", "Zoe", "Leo")
THINGS = ("pens", "eggs", "cards", "books", "coins", "apples", "stamps", "cups")
KINDS = (
    (
        "{name} has {a} {things} and buys {b} more. How many {things} now?",
        "{a}+{b}",
        lambda a, b, c: a + b,
    ),
    (
        "{b} {things} are in a bag. {name} adds {a}. How many {things}?",
        "{b}+{a}",
        lambda a, b, c: b + a,
    ),
    (
        "{name} has {a} {things} and loses {b}. How many {things} are left?",
        "{a}-{b}",
        lambda a, b, c: a - b,
    ),
    (
        "{name} sells {b} of {a} {things}. How many {things} are left?",
        "{a}-{b}",
        lambda a, b, c: a - b,
    ),
    (
        "{name} fills {c} boxes with {b} {things} each. How many {things}?",
        "{c}*{b}",
        lambda a, b, c: c * b,
    ),
    (
        "{name} has {a} {things}, finds {b} and gets {c} more. How many?",
        "{a}+{b}+{c}",
        lambda a, b, c: a + b + c,
    ),
    (
        "{name} had {a} {things}, lost {c}, then found {b}. How many now?",
        "{a}-{c}+{b}",
        lambda a, b, c: a - c + b,
    ),
)
SIGNS = {"+": "plus", "-": "minus", "*": "times"}
HELD_OUT = 5
"""One expression in this many is for evaluation."""


def generate(split, count, seed=0):
    """`count` different problems of `train` or `eval`; the first n are the same whatever the
    count."""
    bits, tasks, seen = random.Random(f"{split}-{seed}").getrandbits, [], set()
    types = ["_".join(SIGNS[c] for c in expression if c in SIGNS) for _, expression, _ in KINDS]

    def below(limit):
        """As `Random.randrange`, in a third of its time: a dry run makes all problems too."""
        drawn, size = limit, limit.bit_length()
        while drawn >= limit:
            drawn = bits(size)
        return drawn

    while len(tasks) < count:
        kind = below(len(KINDS))
        b = 2 + below(58)
        a, c = b + 10 + below(90 - b), 2 + below(8)
        text, expression, value = KINDS[kind]
        numbers = {"a": a, "b": b, "c": c}
        expression = expression.format(**numbers)
        held_out = zlib.crc32(expression.encode()) % HELD_OUT == 0
        if held_out != (split == "eval") or (kind, expression) in seen:
            continue
        seen.add((kind, expression))
        prompt = text.format(
            name=NAMES[below(len(NAMES))], things=THINGS[below(len(THINGS))], **numbers
        )
        metadata = {"expression": expression, "type": types[kind]}
        tasks.append(Task(f"{kind}:{expression}", prompt, str(value(a, b, c)), metadata))
    return tasks


def load(split):
    """4,000 problems to train on, 400 that are held out."""
    return generate(split, 4000 if split == "train" else 400)
