"""Three steps of four tasks, and two that are held out."""

from marl_plugins import Task


def load(split):
    return [
        Task(f"t{n}", f"problem {n}", str(n % 2))
        for n in (range(12) if split == "train" else (12, 13))
    ]
