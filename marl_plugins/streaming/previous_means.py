"""The state that streaming keeps from one step to the next."""


class PreviousMeans(dict[str, float]):
    """The mean, by normalisation group, of the last version's advantages; those of the next one are
    near it (accumulators.py)."""
