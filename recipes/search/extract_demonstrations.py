"""What the tiny models of workflow B see before training: the extractor hands on the name and what
it likes."""

from marl_plugins import Demonstration

from . import world
from .demonstrations import answer, queries
from .slips import as_json, shown, tagged

SLIPS = 0.25
"""How often the extractor takes another word."""


def demonstrate(task, rng):
    names, evidence = queries(task, rng), []
    yield Demonstration(
        "rewriter", {"question": task.prompt}, said=[as_json({"queries": names}, rng)]
    )
    for name in names:
        right = f"{name} {world.LIKES[name]}" if name in world.LIKES else "nothing"
        evidence.append(right)
        wrong = f"{name} {rng.choice(world.THINGS)}"
        said = tagged("evidence", wrong if rng.random() < SLIPS else right, rng)
        yield Demonstration(
            "extractor",
            {"question": task.prompt, "query": name, "documents": shown(name)},
            said=[said],
        )
    fields = {"question": task.prompt, "evidence": "\n\n".join(evidence)}
    yield Demonstration("answerer", fields, said=[answer(names, rng)])
