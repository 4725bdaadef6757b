"""The answer in its box, or else all of it, by the verifier of the task's data set."""

from marl_plugins.cases.gym import gym_score
from marl_plugins.grading import boxed


def score_outcome(trajectory):
    answer = trajectory.answer or ""
    inside = boxed(answer)
    return gym_score(trajectory.task, (answer if inside is None else inside).strip())
