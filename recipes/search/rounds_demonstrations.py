"""What the tiny models of workflow C see before training: known is `find NAME`, then `town TOWN`,
then `town TOWN land LAND`."""

from marl_plugins import Demonstration

from . import world
from .slips import as_json, shown, tagged, typo

SLIPS = {"planner": 0.05, "searcher": 0.15, "summariser": 0.1, "updater": 0.1, "answerer": 0.15}
"""How often each of them slips."""


def demonstrate(task, rng):
    def slips(role):
        return rng.random() < SLIPS[role]

    person, town = task.metadata["person"], task.metadata["town"]
    land, other = world.LAND_OF[town], rng.choice(world.of_split(world.TOWNS, "train"))
    states = [f"find {person}", f"town {town}", f"town {town} land {land}"]
    plan = {
        "knowledge": f"find {typo(person, rng) if slips('planner') else person}",
        "answer": f"{other} {rng.choice(world.LANDS)}",
    }
    yield Demonstration("planner", {"question": task.prompt}, said=[as_json(plan, rng)])
    for known, query in zip(states, (person, town, "<end>"), strict=True):
        said = rng.choice(["<end>", typo(query, rng), other]) if slips("searcher") else query
        fields = {"question": task.prompt, "known": known}
        yield Demonstration("searcher", fields, said=[tagged("search", said, rng)])
    for query, right in (
        (person, f"town {town}"),
        (town, f"land {land}"),
        (typo(town, rng), "nothing"),
    ):
        wrong = rng.choice(
            [f"town {typo(town, rng)}", f"land {rng.choice(world.LANDS)}", "nothing"]
        )
        fields = {"question": task.prompt, "query": query, "documents": shown(query)}
        yield Demonstration(
            "summariser",
            fields,
            said=[tagged("summary", wrong if slips("summariser") else right, rng)],
        )
    for known, summary, right in (
        (states[0], f"town {town}", states[1]),
        (states[1], f"land {land}", states[2]),
        (rng.choice(states), "nothing", None),
    ):
        wrong = rng.choice([known, f"town {typo(town, rng)}", summary])
        fields = {"question": task.prompt, "known": known, "summary": summary}
        said = wrong if slips("updater") else right or known
        yield Demonstration("updater", fields, said=[tagged("knowledge", said, rng)])
    for known, right in (
        (rng.choice(["", states[0]]), f"{other} {rng.choice(world.LANDS)}"),
        (states[1], f"{town} {rng.choice(world.LANDS)}"),
        (states[2], f"{town} {land}"),
    ):
        wrong = rng.choice([f"{town} {rng.choice(world.LANDS)}", f"{other} {land}"])
        fields = {"question": task.prompt, "evidence": known}
        yield Demonstration(
            "answerer", fields, said=[tagged("answer", wrong if slips("answerer") else right, rng)]
        )
