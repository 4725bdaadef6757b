"""An outcome of 0 or 1 that differs from sample to sample."""


def score_outcome(trajectory):
    return float(sum(map(ord, trajectory.answer)) % 2)
