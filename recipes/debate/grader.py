"""The judge is right or not; what one debater wins the other loses: the judge's word for it,
whether that is right or not."""

from marl_plugins.grading import word

SIDES = {"north": "north", "n": "north", "south": "south", "s": "south"}


def decision(text):
    """The side that a text decides for: stated, alone on its last line, or the only one that it
    names; empty where it is none."""
    return SIDES.get(word(text, SIDES), "")


def score_outcome(trajectory):
    decided = decision(trajectory.answer)
    won = {"north": 1.0, "south": 0.0}.get(decided, 0.5)
    return {"north": won, "south": 1.0 - won, "judge": float(decided == trajectory.task.label)}
