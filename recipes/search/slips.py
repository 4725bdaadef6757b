"""What demonstrators get wrong now and then: names, and the form of an answer. What is left to
learn is left to the training."""

import json

from . import world

FORM = 0.05
"""How often an answer lacks its form."""
NOTHING = "nothing was found"


def typo(name, rng):
    """A name with one letter changed: nothing is found by it."""
    place = rng.randrange(1, len(name))
    return (
        name[:place]
        + rng.choice([c for c in "abdefghijklmnoprstuvz" if c != name[place]])
        + name[place + 1 :]
    )


def shown(query):
    """What the tool answers to a query."""
    return world.TEXT_OF.get(query, NOTHING)


def tagged(name, text, rng):
    """A text in its tag, whose end is missing now and then."""
    return f"<{name}>{text}" if rng.random() < FORM else f"<{name}>{text}</{name}>"


def as_json(found, rng):
    text = json.dumps(found)
    return text[:-1] if rng.random() < FORM else text
