"""Which one or two of five operations turn one word into the other? `ibac > BAC`: the first letter
is cut, the rest is in capitals.

The example is the visible test; four others are hidden. No word is in training and in evaluation,
and hardly any is met twice.
"""

import random
import zlib
from functools import cache

from marl_plugins import Task

OPERATIONS = {"rev": "[::-1]", "up": ".upper()", "cut": "[1:]", "end": "[:-1]", "pad": ".zfill(6)"}
TASKS = {"train": 12000, "eval": 200}
HIDDEN = 4
HELD_OUT = 5
"""One word in this many is for evaluation."""


def program(names):
    """The program of some operations, in turn."""
    return f"def f(s): return s{''.join(OPERATIONS[name] for name in names)}"


@cache
def compiled(*names):
    return eval(
        f"lambda s: s{''.join(OPERATIONS[name] for name in names)}"
    )  # operations of our own


def applied(names, word):
    return compiled(*names)(word)


def word(rng, split):
    while True:
        drawn = "".join(rng.choice("abcdefghijklmnop") for _ in range(rng.randint(3, 4)))
        if (zlib.crc32(drawn.encode()) % HELD_OUT == 0) == (split == "eval"):
            return drawn


def visible(given, expected):
    return f"assert f({given!r}) == {expected!r}, f({given!r})"


def load(split):
    rng, found = random.Random(f"reflect-{split}"), {}
    while len(found) < TASKS[split]:
        names = rng.sample(list(OPERATIONS), rng.choice((1, 1, 2)))
        words = [word(rng, split) for _ in range(1 + HIDDEN)]
        prompt = f"{words[0]} > {applied(names, words[0])}"
        tests = [f"assert f({one!r}) == {applied(names, one)!r}" for one in words[1:]]
        shown = visible(words[0], applied(names, words[0]))
        metadata = {"visible": shown, "tests": shown, "operations": names}
        found[prompt] = Task(prompt, prompt, tests, metadata)
    return list(found.values())
