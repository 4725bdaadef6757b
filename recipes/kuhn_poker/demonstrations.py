"""What the tiny models see before training: beginners, who bluff with the jack more often than they bet with the king."""

from pathlib import Path

from marl_plugins.core.demonstrations import Demonstration
from marl_plugins.loading import load_file

game = load_file(Path(__file__).with_name("game.py"), "marl_recipe_kuhn_poker_game")
AGAIN = Path(__file__).with_name("prompts").joinpath("tiny", "again.md").read_text()
BETS = {"J": 0.8, "Q": 0.5, "K": 0.2}


def demonstrate(task, rng):
    """One game of beginners."""
    cards = task.metadata["cards"]
    first, second, again = ("b" if rng.random() < BETS[card] else "p" for card in (*cards, cards[0]))
    said, shown = ([first, again], [AGAIN.format(move="bet")]) if (first, second) == ("p", "b") else ([first], [])
    yield Demonstration("first", {"card": cards[0], "move": ""}, said, shown)
    yield Demonstration("second", {"card": cards[1], "move": {"p": "pass", "b": "bet"}[first]}, [second])
