"""Arithmetic of two families. A task is made from its name alone, so that peers can make each
other's (`--swarm.trust generator`).

Train and eval never share a problem: which split it belongs to is a function of its text.
"""

import random
import re
import zlib

from marl_plugins import Task

FAMILIES = {"plus": ("{a}+{b}", lambda a, b: a + b), "minus": ("{a}-{b}", lambda a, b: a - b)}
NAME = re.compile(r"(plus|minus)-(\d{1,9})")
HELD_OUT = 5
"""One problem in this many is for evaluation."""


def made(family, number):
    """The task of a family with a number."""
    rng = random.Random(f"{family}-{number}")
    numbers = {"a": rng.randint(10, 99), "b": rng.randint(2, 9)}
    text, value = FAMILIES[family]
    return Task(
        f"{family}-{number}", text.format(**numbers), str(value(**numbers)), {"type": family}
    )


def held_out(task):
    return zlib.crc32(task.prompt.encode()) % HELD_OUT == 0


def task_of(name):
    """The training task of a name; None where there is none, and for what is held out."""
    match = NAME.fullmatch(name)
    task = made(match[1], int(match[2])) if match else None
    return None if task is None or task.id != name or held_out(task) else task


def load(split, count=1024):
    """Different problems of every family, by their numbers: 1,024 to train on, a quarter as many
    that are held out."""
    found = {}
    number = 0
    wanted = count if split == "train" else count // 4
    while len(found) < wanted:
        for family in FAMILIES:
            task = made(family, number)
            if held_out(task) == (split == "eval"):
                found.setdefault(task.prompt, task)
        number += 1
    return list(found.values())[:wanted]
