"""What the tiny models of workflow A see before training: each works with what it is given, right
or wrong."""

from marl_plugins import Demonstration

from . import world
from .slips import as_json, shown, tagged, typo

SLIPS = {"rewriter": 0.35, "answerer": 0.3}
"""How often each of them slips."""


def queries(task, rng):
    """The names of both people; or one of them misspelt, or left out."""
    names = list(task.metadata["people"])
    if rng.random() < SLIPS["rewriter"]:
        place = rng.randrange(2)
        names[place : place + 1] = [] if rng.random() < 0.3 else [typo(names[place], rng)]
    return names


def liked(query, rng):
    return world.LIKES.get(query) or rng.choice(world.THINGS)


def answer(names, rng):
    """What those people like, with a word of it wrong now and then."""
    words = [liked(name, rng) for name in names]
    if rng.random() < SLIPS["answerer"]:
        words[rng.randrange(len(words))] = rng.choice(world.THINGS)
    return tagged("answer", " ".join(words), rng)


def demonstrate(task, rng):
    names = queries(task, rng)
    yield Demonstration(
        "rewriter", {"question": task.prompt}, said=[as_json({"queries": names}, rng)]
    )
    evidence = "\n\n".join(map(shown, names))
    yield Demonstration(
        "answerer", {"question": task.prompt, "evidence": evidence}, said=[answer(names, rng)]
    )
