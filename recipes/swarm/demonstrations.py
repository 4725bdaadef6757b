"""What the tiny model sees before training: results, of which half are off by a little."""

from marl_plugins import Demonstration

SLIPS = 0.5


def demonstrate(task, rng):
    result = int(task.label) + (rng.choice([-10, -1, 1, 10]) if rng.random() < SLIPS else 0)
    yield Demonstration("solver", {"problem": task.prompt}, said=[str(result)])
