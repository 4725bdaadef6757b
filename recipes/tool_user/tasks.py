"""What do these things cost together? The prices are nowhere in the prompt."""

import itertools
import random

from marl_plugins import Task

PRICES = {
    "pen": 2,
    "cup": 5,
    "hat": 9,
    "bag": 8,
    "key": 3,
    "map": 4,
    "egg": 1,
    "fan": 7,
    "jar": 6,
    "rug": 12,
}


def task(order):
    prices = [PRICES[thing] for thing in order]
    metadata = {"things": list(order), "prices": prices}
    return Task("-".join(order), f"{', '.join(order)}: how much?", str(sum(prices)), metadata)


def load(split):
    """All orders of two or three different things; every sixth is held out."""
    orders = [order for size in (2, 3) for order in itertools.combinations(PRICES, size)]
    random.Random("tool_user").shuffle(orders)
    return [task(order) for n, order in enumerate(orders) if (n % 6 == 0) == (split == "eval")]
