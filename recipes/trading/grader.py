"""How much of what there was to earn the traders have earned together.

0.5 is nothing, 1 what a trader would have earned who knows every day's return and trades for
nothing, 0 the same as a loss.
"""

from statistics import fmean

from .market import Market, replayed


def score_outcome(trajectory):
    earned = replayed(trajectory.task.id, trajectory.answer)
    most = sum(abs(change) for change in Market(trajectory.task.id).returns)
    mean = fmean(sum(days) for days in earned.values())
    return min(max(0.5 + mean / most / 2, 0.0), 1.0)
