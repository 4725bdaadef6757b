"""What the tiny model sees before training: look up one thing after the other, then add up, now and
then wrongly."""

from marl_plugins import Demonstration

SLIPS = 0.3


def demonstrate(task, rng):
    total = int(task.label) + (rng.choice([-2, -1, 1, 2]) if rng.random() < SLIPS else 0)
    things, prices = task.metadata["things"], task.metadata["prices"]
    said = [f"<price>{thing}</price>" for thing in things]
    yield Demonstration(
        "clerk",
        {"order": task.prompt},
        said=[*said, str(total)],
        shown=[f"{thing}: {price}" for thing, price in zip(things, prices, strict=True)],
    )
