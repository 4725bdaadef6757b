"""What do two people like? Each has a document of their own, so both have to be searched; F1 gives
half for one of them."""

import random

from marl_plugins import Task

from . import world

TASKS = {"train": 4000, "eval": 300}


def load(split):
    """Pairs of people, of whom nobody is in both splits."""
    rng, people, found = random.Random(f"likes-{split}"), world.of_split(world.PEOPLE, split), {}
    while len(found) < TASKS[split]:
        pair = rng.sample(people, 2)
        label = " ".join(world.LIKES[person] for person in pair)
        found["-".join(pair)] = Task(
            "-".join(pair), f"What do {pair[0]} and {pair[1]} like?", label, {"people": pair}
        )
    return list(found.values())
