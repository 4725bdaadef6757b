"""The nine specialties of SAPO's experiment. A task is made from its name alone
(`--swarm.trust generator`)."""

import re
import zlib

from marl_plugins import gym_task

SPECIALTIES = (
    *(
        "base_conversion",
        "basic_arithmetic",
        "arc_1d",
        "bf",
        "propositional_logic",
        "fraction_simplification",
    ),
    *("decimal_arithmetic", "calendar_arithmetic", "binary_matrix"),
)
NAME = re.compile(rf"({'|'.join(SPECIALTIES)})-(\d{{1,9}})")
HELD_OUT = 5
"""One question in this many is for evaluation."""


def held_out(task):
    return zlib.crc32(task.prompt.encode()) % HELD_OUT == 0


def task_of(name):
    """The training task of a name; None where there is none, and for what is held out."""
    match = NAME.fullmatch(name)
    task = gym_task(match[1], int(match[2])) if match else None
    return None if task is None or task.id != name or held_out(task) else task


def load(split, count=900):
    """Different questions of every specialty: 900 to train on, a tenth as many that are held
    out."""
    found = {}
    number, wanted = 0, count if split == "train" else count // 10
    while len(found) < wanted:
        for name in SPECIALTIES:
            task = gym_task(name, number)
            if held_out(task) == (split == "eval"):
                found.setdefault(task.prompt, task)
        number += 1
    return list(found.values())[:wanted]
