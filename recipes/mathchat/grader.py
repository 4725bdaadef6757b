"""The verifier: whether the final answer is the right one. Deterministic, without a model.

What counts is the last `\\boxed{...}` of the answer, as the prompts ask; without one its last line,
as the tiny models write it. Numbers are compared as numbers, words as words, anything else by
math-verify.
"""

from marl_plugins.grading import final, right

answer_key = final
"""Answers that are the same, for maj@k."""


async def score_outcome(trajectory):
    """1 for the right answer."""
    task = trajectory.task
    try:
        return float(await right(trajectory.answer, task.label))
    except ValueError as error:
        raise ValueError(f"task {task.id}: {error}") from None
