"""An endless stream of additions and subtractions: questions hardly ever come again.

Train and eval never share a problem: which split it belongs to is a function of its text. A task is
made from its name alone (`--swarm.trust generator`).
"""

import random
import re
import zlib

from marl_plugins import Task

FAMILIES = {"plus": ("{a}+{b}", lambda a, b: a + b), "minus": ("{a}-{b}", lambda a, b: a - b)}
NAME = re.compile(r"(plus|minus)-(\d{1,3})-(\d{1,2})")
FIRST, SECOND = range(10, 300), range(10, 100)
HELD_OUT = 5
"""One problem in this many is for evaluation."""


def made(family, a, b):
    text, value = FAMILIES[family]
    return Task(f"{family}-{a}-{b}", text.format(a=a, b=b), str(value(a=a, b=b)), {"type": family})


def held_out(task):
    return zlib.crc32(task.prompt.encode()) % HELD_OUT == 0


def task_of(name):
    """The training task of a name; None where there is none, and for what is held out."""
    match = NAME.fullmatch(name)
    task = made(match[1], int(match[2]), int(match[3])) if match else None
    return None if task is None or task.id != name or held_out(task) else task


def load(split):
    """All problems in a random order: 41,000 to train on, and 256 of those that are held out."""
    tasks = [made(family, a, b) for family in FAMILIES for a in FIRST for b in SECOND]
    random.Random(0).shuffle(tasks)
    chosen = [task for task in tasks if held_out(task) == (split == "eval")]
    return chosen if split == "train" else chosen[:256]
