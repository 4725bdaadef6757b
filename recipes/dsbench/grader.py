"""What a submission is worth: the part of the way from the sample submission to the best score that
it has come, 0 to 1."""

from . import judging


async def score_outcome(trajectory):
    return min(1.0, await judging.gap(trajectory))
