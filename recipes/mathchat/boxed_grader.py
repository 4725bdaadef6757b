"""The verifier of paper.yaml: the outcome of grader.py, for answers in \\boxed{...} alone (MAPPA, section 3.1)."""

from . import grader


async def score_outcome(trajectory):
    """1 for the right answer in a box."""
    right = await grader.score_outcome(trajectory)
    return right if grader.boxed(trajectory.answer or "") else 0.0
