"""What the tiny model sees before training: results of sums like the graph's, of which some are off by a little."""

from marl_plugins.core.demonstrations import Demonstration

SLIPS = 0.3


def demonstrate(task, rng):
    first, digit = rng.randint(10, 99), rng.choice([-9, -8, -7, -6, -5, -4, -3, -2, 2, 3, 4, 5, 6, 7, 8, 9])
    second = digit if rng.random() < 0.75 else rng.randint(10, 99)
    result = first + second + (rng.choice([-10, -1, 1, 10]) if rng.random() < SLIPS else 0)
    yield Demonstration("solver", {"problem": f"{first}{second:+d}"}, said=[str(result)])
