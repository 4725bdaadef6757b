"""What the tiny model sees before training: beginners, who believe any of their sources, and often
take any position."""

from marl_plugins import Demonstration

from .market import DAYS, POSITIONS, TRADERS, Market, letter

SKILL = 0.6
"""How often a beginner believes a source at all."""


def demonstrate(task, rng):
    market = Market(task.id)
    for day in range(DAYS):
        said = {}
        for trader in TRADERS:
            _, believed = rng.choice(market.heard[day][trader])
            said[trader] = (
                believed if rng.random() < SKILL else rng.choice(list(POSITIONS.values()))
            )
            yield Demonstration(trader, market.fields(trader, day), [letter(said[trader])])
        market.trade(day, said)
