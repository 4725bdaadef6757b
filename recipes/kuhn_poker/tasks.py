"""The six deals, as often as a run needs them; all are played in every step."""

from marl_plugins import Task

from . import game

ROUNDS = 64


def load(split):
    rounds = ROUNDS if split == "train" else 0
    return [
        Task(f"{deal}-{number}", f"deal {deal}", metadata={"cards": deal})
        for number in range(rounds)
        for deal in game.DEALS
    ]
