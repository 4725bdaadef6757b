"""The answer in its box, or else all of it, by the verifier of the task's data set; or what the
text says is its answer, bare."""

import asyncio
import re

from marl_plugins import gym_score
from marl_plugins.grading import boxed, stated

TEXT = re.compile(r"\\(?:text|mathrm|textbf|mathbf)\s*\{([^{}]*)\}")


async def score_outcome(trajectory):
    answer = trajectory.answer or ""
    inside = boxed(answer)
    said = (answer if inside is None else inside).strip()
    score = await asyncio.to_thread(gym_score, trajectory.task, said)
    other = bare(stated(answer) or said)
    if (
        score < 1 and other and other != said
    ):  # verifiers compare characters; a grid of several lines is stated as a whole
        score = max(score, await asyncio.to_thread(gym_score, trajectory.task, other))
    return score


def bare(said):
    """What was said, without what only typesets it."""
    typeset = TEXT.fullmatch(said)
    return (typeset[1] if typeset else said).strip(" \n*`\"'").removesuffix(".").rstrip(" *`")
