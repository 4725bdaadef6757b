"""An answer is the letter A or B, alone on the last line."""

from marl_plugins.grading import word


def letter(text):
    return word(text, "AB")


def score_outcome(trajectory):
    return float(letter(trajectory.answer) == trajectory.task.label)
