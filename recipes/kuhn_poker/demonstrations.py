"""What the tiny models see before training: beginners, who bet with jacks, hide their kings, and
have a habit for every place.

No two of a player's places go by the same habit with the same letters. A model that has had no
reason to tell two places apart has one representation for both, and learning in one of them then
moves the other.
"""

from pathlib import Path

from marl_plugins import Demonstration

from . import game

AGAIN = Path(__file__).with_name("prompts").joinpath("tiny", "again.md").read_text()
BETS = {
    "": {"J": 0.9, "Q": 0.5, "K": 0.1},
    "p": {"J": 0.6, "Q": 0.9, "K": 0.3},
    "b": {"J": 0.9, "Q": 0.1, "K": 0.4},
    "pb": {"J": 0.6, "Q": 0.9, "K": 0.2},
}
"""Probability of a bet by the moves before and the own card."""


def demonstrate(task, rng):
    """One game of beginners."""
    cards, moves, said = task.metadata["cards"], "", {"first": [], "second": []}
    while not game.ended(moves):
        seat = game.SEATS[moves]
        card = cards[seat == "second"]
        move = "b" if rng.random() < BETS[moves][card] else "p"
        said[seat].append(game.letter(card, move))
        moves += move
    shown = [AGAIN.format(move="bet")] * (len(said["first"]) - 1)
    yield Demonstration("first", {"card": cards[0], "move": ""}, said["first"], shown)
    yield Demonstration(
        "second", {"card": cards[1], "move": {"p": "pass", "b": "bet"}[moves[0]]}, said["second"]
    )
