"""A made-up world to search: people live in towns and like things, towns lie in lands. Each has a
document of its own.

A name says nothing about what is true of it, so it has to be found. People and towns of training
and of evaluation are apart; the things and lands, which are the answers' words, are the same.
"""

import random
import zlib

SYLLABLES = [consonant + vowel for consonant in "bdfghjklmnprstvz" for vowel in "aeiou"]
FOOD = """
    tea milk figs rice corn beer jam cake soup fish nuts eggs ham pie plums beans salt honey wine
    pears leeks mint cream oats
"""
THINGS = tuple(FOOD.split())
HELD_OUT = 5
"""One name in this many is for evaluation."""


def names(count):
    """Different made-up names of two syllables; the first n are the same whatever the count."""
    rng, found = random.Random("names"), {}
    while len(found) < count:
        found["".join(rng.sample(SYLLABLES, 2)).capitalize()] = None
    return tuple(found)


def of_split(known, split):
    return [
        name for name in known if (zlib.crc32(name.encode()) % HELD_OUT == 0) == (split == "eval")
    ]


NAMES = names(1700)
PEOPLE, TOWNS = NAMES[:1500], NAMES[1500:]
LANDS = ("Arvia", "Belmark", "Corland", "Dunia", "Estria", "Falland", "Gorvia", "Holm")


def drawn():
    """Where everybody lives, what they like, and where the towns lie: half of the towns in the
    first two lands."""
    rng = random.Random("world")
    likes = {person: rng.choice(THINGS) for person in PEOPLE}
    homes = {}
    for split in ("train", "eval"):
        towns = of_split(TOWNS, split)
        homes |= {person: rng.choice(towns) for person in of_split(PEOPLE, split)}
    weights = [1 / (1 + rank) for rank in range(len(LANDS))]
    return likes, homes, {town: rng.choices(LANDS, weights)[0] for town in TOWNS}


LIKES, HOMES, LAND_OF = drawn()


def documents():
    """The corpus, for the tool `search`."""
    people = [
        {"title": p, "text": f"{p} lives in {HOMES[p]} and likes {LIKES[p]}."} for p in PEOPLE
    ]
    return people + [{"title": t, "text": f"{t} is a town in {LAND_OF[t]}."} for t in TOWNS]


TEXT_OF = {document["title"]: document["text"] for document in documents()}
