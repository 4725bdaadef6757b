"""What the tiny models see before training: debaters who quote any of their digits, judges who err
one time in four."""

from pathlib import Path

from marl_plugins import Demonstration

AGAIN = Path(__file__).with_name("prompts").joinpath("tiny", "again.md").read_text()
RIGHT = 0.75
OTHER = {"north": "south", "south": "north"}


def demonstrate(task, rng):
    """One debate."""
    reports = task.metadata["reports"]
    said = {side: [rng.choice(report) for _ in range(2)] for side, report in reports.items()}
    for side, report in reports.items():
        shown = [AGAIN.format(quote=said[OTHER[side]][0])]
        yield Demonstration(
            side,
            {"question": task.prompt, "side": side, "report": "\n".join(report)},
            said[side],
            shown,
        )
    north, south = (max(said[side]) for side in ("north", "south"))
    better = "north" if north > south or (north == south and rng.random() < 0.5) else "south"
    decided = better if rng.random() < RIGHT else OTHER[better]
    seen = {side: "\n".join(quotes) for side, quotes in said.items()}
    yield Demonstration("judge", {"question": task.prompt, **seen}, [decided[0]])
