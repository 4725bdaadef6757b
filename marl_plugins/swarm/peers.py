"""The state that a run keeps of its exchange with its peers from one step to the next."""

from __future__ import annotations

import secrets


class Swarm:
    """The state of a run's exchange with its peers."""

    def __init__(self) -> None:
        self.run = secrets.token_hex(4)
        """The run's own id: a fresh run under an old name collides with nothing."""
        self.seen: set[str] = set()
        """Names of the records that were taken or refused, of rounds that may still be asked for."""
        self.outcomes: dict[str, list[float]] = {}
        """By source, the mean outcomes of the last rounds (capability.py)."""
        self.metrics: dict[str, float] = {}
        """Of the step."""
