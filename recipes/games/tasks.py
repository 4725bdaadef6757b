"""Games of one kind, each with a seed of its own for what chance does. Another game: another name
here."""

from marl_plugins import Task

GAME = "kuhn_poker"


def load(split, game=GAME, count=1056):
    first, count = (0, count) if split == "train" else (10**6, count // 10)
    return [
        Task(
            f"{game}-{seed}", f"{game}, {seed}", metadata={"game": game, "seed": seed, "type": game}
        )
        for seed in range(first, first + count)
    ]
