"""The verifier of paper.yaml: the outcome of grader.py, for answers in \\boxed{...} alone (MAPPA,
section 3.1)."""

from marl_plugins.grading import boxed

from . import grader


async def score_outcome(trajectory):
    """1 for the right answer in a box."""
    right = await grader.score_outcome(trajectory)
    return right if boxed(trajectory.answer or "") else 0.0
