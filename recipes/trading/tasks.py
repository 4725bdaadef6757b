"""A task is a name, from which its market is drawn."""

from marl_plugins import Task


def load(split, count=1024):
    return [
        Task(f"{split}-{n}", f"market {split}-{n}")
        for n in range(count if split == "train" else count // 4)
    ]
