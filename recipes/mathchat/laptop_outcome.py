"""The control to laptop_grader.py: both roles are paid for the right answer, and for nothing
else."""

from .laptop_grader import parts


async def score_outcome(trajectory):
    return float(all(parts(trajectory)))
