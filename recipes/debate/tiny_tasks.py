"""Two reports of four digits. Which one has the largest digit?"""

import random
import zlib

from marl_plugins import Task

HELD_OUT = 5
"""One pair of reports in this many is for evaluation."""


def generate(split, count):
    rng, tasks, seen = random.Random(f"debate-tiny-{split}"), [], set()
    while len(tasks) < count:
        north, south = ("".join(rng.choices("0123456789", k=4)) for _ in range(2))
        held_out = zlib.crc32(f"{north}{south}".encode()) % HELD_OUT == 0
        if max(north) == max(south) or (north, south) in seen or held_out != (split == "eval"):
            continue
        seen.add((north, south))
        label = "north" if max(north) > max(south) else "south"
        tasks.append(
            Task(
                f"{north}-{south}",
                f"{north} or {south}?",
                label,
                {"reports": {"north": list(north), "south": list(south)}},
            )
        )
    return tasks


def load(split):
    """4,000 pairs of reports to train on, 400 that are held out."""
    return generate(split, 4000 if split == "train" else 400)
