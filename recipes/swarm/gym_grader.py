"""The answer in its box, or else all of it, by the verifier of the task's data set."""

import asyncio

from marl_plugins.cases.gym import gym_score
from marl_plugins.grading import boxed


async def score_outcome(trajectory):
    answer = trajectory.answer or ""
    inside = boxed(answer)
    return await asyncio.to_thread(gym_score, trajectory.task, (answer if inside is None else inside).strip())
