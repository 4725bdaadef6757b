"""In which town and land does somebody live? The town is in the person's document, its land in the
town's: two searches in turn."""

from marl_plugins import Task

from . import world

EVAL = 200
"""People of an evaluation, each of whom takes up to eleven answers."""


def load(split):
    """People in towns that the other split does not have."""
    found = []
    for person in world.of_split(world.PEOPLE, split):
        town = world.HOMES[person]
        label = f"{town} {world.LAND_OF[town]}"
        found.append(
            Task(
                person,
                f"In which town and land does {person} live?",
                label,
                {"person": person, "town": town},
            )
        )
    return found if split == "train" else found[:EVAL]
