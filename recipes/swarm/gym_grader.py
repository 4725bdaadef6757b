"""The answer in its box, or else all of it, by the verifier of the task's data set."""

import re

from marl_plugins.cases.gym import gym_score

BOX = re.compile(r"\\boxed\{(.*?)\}", re.DOTALL)


def score_outcome(trajectory):
    answer = trajectory.answer or ""
    boxes = BOX.findall(answer)
    return gym_score(trajectory.task, (boxes[-1] if boxes else answer).strip())
