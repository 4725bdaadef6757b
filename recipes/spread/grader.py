"""The success of the correction: the share of the people who hold it at the end."""

from .network import replayed


def score_outcome(trajectory):
    final, _ = replayed(trajectory.task.id, trajectory.answer)
    return final
