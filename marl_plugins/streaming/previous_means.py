"""What streaming keeps from one step to the next."""


class PreviousMeans(dict[str, float]):
    """By normalisation group, the mean of the last version's advantages; those of the next one are near it (accumulators.py)."""
