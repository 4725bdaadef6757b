"""The verifier: whether the final answer is the right one. Deterministic, without a model.

What counts is the last `\\boxed{...}` of the answer; without one, what it states (`answer: X`), or
its last number with the whole expression that it is a part of. Numbers are compared as numbers,
lists part by part, words as words, anything else by math-verify.
"""

from marl_plugins.grading import right


async def score_outcome(trajectory):
    """1 for the right answer."""
    task = trajectory.task
    try:
        return float(await right(trajectory.answer, task.label))
    except ValueError as error:
        raise ValueError(f"task {task.id}: {error}") from None
