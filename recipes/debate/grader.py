"""The judge is right or not; what one debater wins the other loses: the judge's word for it, whether that is right or not."""

import re

SIDE = re.compile(r"\b(n|s)(?:orth|outh)?\b", re.IGNORECASE)


def decision(text):
    """The last side that a text names; empty where it names none."""
    found = SIDE.findall(text or "")
    return {"n": "north", "s": "south"}[found[-1].lower()] if found else ""


def score_outcome(trajectory):
    decided = decision(trajectory.answer)
    won = {"north": 1.0, "south": 0.0}.get(decided, 0.5)
    return {"north": won, "south": 1.0 - won, "judge": float(decided == trajectory.task.label)}
