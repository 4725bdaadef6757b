"""The answer in its box, or else all of it (a grid has several lines), by the verifier of the
task's data set, which compares characters."""

import asyncio
import re

from marl_plugins import gym_score
from marl_plugins.grading import boxed

TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


async def score_outcome(trajectory):
    answer = trajectory.answer or ""
    inside = boxed(answer)
    said = answer if inside is None else TEXT.sub(r"\1", inside)
    return await asyncio.to_thread(gym_score, trajectory.task, said.strip())
