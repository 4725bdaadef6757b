"""The answer is the sum: after `answer:` on the last line, as the prompt asks, or alone there."""

from marl_plugins.grading import right


async def score_outcome(trajectory):
    return float(await right(trajectory.answer, trajectory.task.label))
