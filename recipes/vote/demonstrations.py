"""What the tiny models see before training: voters that are right four times in five, deciders that
count the votes."""

from collections import Counter

from marl_plugins import Demonstration

RIGHT = 0.8
OTHER = {"A": "B", "B": "A"}


def demonstrate(task, rng):
    votes = [task.label if rng.random() < RIGHT else OTHER[task.label] for _ in range(5)]
    yield Demonstration("voter", {"problem": task.prompt}, said=[votes[0]])
    winner = Counter(votes).most_common(1)[0][0]
    yield Demonstration(
        "decider", {"problem": task.prompt, "votes": "\n\n".join(votes)}, said=[winner]
    )
