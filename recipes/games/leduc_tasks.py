"""Games of Leduc poker: six cards, two rounds of bets, one card on the table."""

from . import tasks

GAME = "leduc_poker"


def load(split):
    return tasks.load(split, GAME)
