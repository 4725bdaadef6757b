"""The answer is the result: in a box, as the prompt asks, or alone on the last line."""

from marl_plugins.grading import right


async def score_outcome(trajectory):
    return float(await right(trajectory.answer, trajectory.task.label))
