"""A market that is drawn from a task's name, and what traders earn in it.

Every day each trader hears three sources of its own, which are right 5, 6 and 9 times in 10, and
says which position it takes in one asset: long, none or short. It earns its position times the
day's return. The return falls with what all traders hold together, and every trade costs.
"""

import random
from statistics import fmean

from marl_plugins.grading import word

DAYS, VOLATILITY, COST, IMPACT = 4, 0.0095, 0.001, 0.002
"""Days of a task; deviation of a day's return (0.15 a year); cost of a trade, and what the return
falls by where all are long, as shares of what is held."""
TRADERS = tuple(f"trader{number}" for number in range(1, 7))
RIGHT = (5, 6, 9)
"""How often, in 10, a source names the sign of the day's return."""
POSITIONS = {"buy": 1, "out": 0, "sell": -1}
"""The word for each position; a tiny model says the first letter."""
AS_IT_IS = "-"


class Market:
    """The days of a task.

    Args:
        name: The task's: it decides the returns, and what the sources say.
    """

    def __init__(self, name):
        rng = random.Random(f"trading {name}")
        self.returns = [rng.gauss(0, VOLATILITY) for _ in range(DAYS)]
        self.heard = [
            {trader: sources(change, rng) for trader in TRADERS} for change in self.returns
        ]
        self.held = dict.fromkeys(TRADERS, 0)
        """What each holds: -1, 0 or 1; at first nothing."""

    def fields(self, trader, day):
        """What a trader is shown."""
        heard, held = self.heard[day][trader], self.held[trader]
        states = {1: "have bought the asset", 0: "hold nothing", -1: "have sold the asset short"}
        return {
            "sources": "\n".join(
                f"A source that is right {right} times in 10 says that the price will "
                f"{'rise' if says > 0 else 'fall'}."
                for right, says in heard
            ),
            "state": states[held],
            "letters": " ".join(
                [*(f"{right}{'+' if says > 0 else '-'}" for right, says in heard), letter(held)]
            ),
        }

    def trade(self, day, positions):
        """One day.

        Args:
            positions: By trader, the position that it takes, or None: the one that it has.

        Returns:
            What each has earned, as a share of what a position is worth.
        """
        taken = {t: self.held[t] if positions[t] is None else positions[t] for t in TRADERS}
        change = self.returns[day] - IMPACT * fmean(taken.values())
        earned = {t: taken[t] * change - COST * abs(taken[t] - self.held[t]) for t in TRADERS}
        self.held = taken
        return earned


def sources(change, rng):
    """What the three sources say of a day, as (times right in 10, sign), in an order of its own."""
    sign = 1 if change > 0 else -1
    heard = [(right, sign if rng.random() < right / 10 else -sign) for right in RIGHT]
    rng.shuffle(heard)
    return heard


def letter(position):
    """The first letter of a position's word."""
    return next(name[0] for name, value in POSITIONS.items() if value == position)


def position_of(text):
    """The position whose word, or its first letter, stands alone on the last line; None: no
    position's."""
    words = POSITIONS | {name[0]: value for name, value in POSITIONS.items()}
    return words.get(word(text, words).lower())


def written(days):
    """The days as a text: a letter for each trader, in the order of `TRADERS`."""
    return " ".join(
        "".join(AS_IT_IS if said[t] is None else letter(said[t]) for t in TRADERS) for said in days
    )


def replayed(name, text):
    """What each trader has earned on each day that a text says.

    Returns:
        By trader, a list over days.
    """
    market, values = Market(name), {letter(value): value for value in POSITIONS.values()}
    earned = {trader: [] for trader in TRADERS}
    for day, letters in enumerate(text.split()):
        said = {t: values.get(each) for t, each in zip(TRADERS, letters, strict=True)}
        for trader, amount in market.trade(day, said).items():
            earned[trader].append(amount)
    return earned
