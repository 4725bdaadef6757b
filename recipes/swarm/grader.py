"""The number of the final answer is the result: in a box, after `answer:`, or the last one of the
text."""

from marl_plugins.grading import clean, final, number


def score_outcome(trajectory):
    found = number(clean(final(trajectory.answer or "")))
    return float(found is not None and found == number(trajectory.task.label))
