"""What the tiny model sees before training: numbers near the result, of which one in `WIDTH` is
it."""

from marl_plugins import Demonstration

WIDTH = 51


def demonstrate(task, rng):
    said = int(task.label) + rng.randrange(WIDTH) - WIDTH // 2
    yield Demonstration("solver", {"problem": task.prompt}, said=[str(said)])
