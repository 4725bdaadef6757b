"""An endless stream of puzzles: in each of three words of four letters a digit stands for one of
them, and the answer is the digits.

Train and eval never share a puzzle: which split it belongs to is a function of its text. A task is
made from its name alone (`--swarm.trust generator`).
"""

import random
import re
import string
import zlib

from marl_plugins import Task

WORDS, LETTERS = 3, 4
NAME = re.compile(r"digits-(\d{1,9})")
HELD_OUT = 5
"""One puzzle in this many is for evaluation."""


def made(number):
    """The task of a number."""
    rng = random.Random(number)
    words = [rng.sample(string.ascii_lowercase, LETTERS) for _ in range(WORDS)]
    digits = [rng.choice("123456789") for _ in words]
    for word, digit in zip(words, digits, strict=True):
        word[rng.randrange(LETTERS)] = digit
    return Task(f"digits-{number}", " ".join(map("".join, words)), "".join(digits))


def held_out(task):
    return zlib.crc32(task.prompt.encode()) % HELD_OUT == 0


def task_of(name):
    """The training task of a name; None where there is none, and for what is held out."""
    match = NAME.fullmatch(name)
    task = made(int(match[1])) if match else None
    return None if task is None or task.id != name or held_out(task) else task


def load(split):
    """40,000 puzzles, of which four in five are to train on, and 256 of those that are held out."""
    tasks = [made(number) for number in range(40_000)]
    chosen = [task for task in tasks if held_out(task) == (split == "eval")]
    return chosen if split == "train" else chosen[:256]
