"""What the tiny model sees before training: results of sums like the graph's, of which some are off
by a little."""

from marl_plugins import Demonstration

SLIPS = 0.3


def demonstrate(task, rng):
    if rng.random() < 0.15:
        first, second = rng.randint(3, 25), rng.randint(3, 25)
    else:
        first = rng.randint(1, 27)
        second = rng.choice(
            [digit for digit in range(-9, 10) if abs(digit) > 1 and first + digit >= 0]
        )
    result = first + second + (rng.choice([-10, -1, 1, 10]) if rng.random() < SLIPS else 0)
    yield Demonstration("solver", {"problem": f"{first}{second:+d}"}, said=[str(result)])
