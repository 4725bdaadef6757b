"""What the tiny model sees before training: a word for each decision, the wrong one so often that
ten right ones are rare."""

from marl_plugins import Demonstration

from . import pipeline

SLIPS = 0.43
"""How often a word is another one of the four: ten right ones in a row have 0.57 ** 10 = 0.36 %."""
OFTEN = ("keep", "write")
"""Decisions before which an agent is often told that its program failed."""


def demonstrate(task, rng):
    """One demonstration of every role, whose programs run or fail as they may."""
    card = task.metadata["words"]
    for role, stages in pipeline.BY_ROLE.items():
        said, shown = [], []
        for stage in stages:
            good = pipeline.right(stage.name, card)
            said.append(
                rng.choice([w for w in stage.options if w != good])
                if rng.random() < SLIPS
                else good
            )
            told = "failed" if stage.name in OFTEN and rng.random() < 0.5 else "ok"
            shown.append(f"{told}\n{stage.name}?")
        yield Demonstration(role, {"words": card}, said=said, shown=shown[1:])
