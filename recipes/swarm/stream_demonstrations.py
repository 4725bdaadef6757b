"""What the tiny model sees before training: a letter of each word, whichever it is."""

from marl_plugins import Demonstration


def demonstrate(task, rng):
    said = "".join(rng.choice(word) for word in task.prompt.split())
    yield Demonstration("solver", {"problem": task.prompt}, said=[said])
