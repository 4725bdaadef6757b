"""The judge is right or not; what one debater wins the other loses: the judge's word for it,
whether that is right or not."""

from marl_plugins.grading import word

SIDES = {"north": "north", "n": "north", "south": "south", "s": "south"}


def decision(text):
    """The side that stands alone on the last line of a text; empty where it is none."""
    return SIDES.get(word(text, SIDES), "")


def score_outcome(trajectory):
    decided = decision(trajectory.answer)
    won = {"north": 1.0, "south": 0.0}.get(decided, 0.5)
    return {"north": won, "south": 1.0 - won, "judge": float(decided == trajectory.task.label)}
