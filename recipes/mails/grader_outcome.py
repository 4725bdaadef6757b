"""The control to grader.py: both roles are paid for a mail that is right, and for nothing else."""

from .grader import parts


async def score_outcome(trajectory):
    return float(all(parts(trajectory)))
