"""The deals of tasks.py; in a share of the games an earlier version of the player has one of the
seats, the two seats in turn."""

from dataclasses import replace

from . import tasks

SHARE = 0.5


def load(split):
    return [
        replace(task, metadata={**task.metadata, "earlier": seat, "type": f"earlier: {seat}"})
        for number, task in enumerate(tasks.load(split))
        for seat in [earlier(number // len(tasks.game.DEALS))]
    ]


def earlier(number):
    """The seat of the earlier version in a deal's game of this number; None in a game of the player
    against itself."""
    before, after = int(number * SHARE), int((number + 1) * SHARE)
    return None if before == after else ("first", "second")[before % 2]
