"""What the rehearsal of a run left, for whoever tries something on it."""

from __future__ import annotations

from marl_plugins.core.trajectory import Trajectory


class RehearsalResult:
    """The trajectories that a run's rehearsal left, for plugins that try their scorers on it in
    `marl_configure`: `run.state(RehearsalResult)`."""

    def __init__(self) -> None:
        self.trajectories: dict[str, Trajectory] = {}
        """By when they came about, as in "every answer is a word"; empty where the run was not
        rehearsed."""
        self.others: list[dict[str, Trajectory]] = []
        """The same of tasks of another kind."""
        self.sure = False
        """Whether their task is one of the run's, and not invented."""
        self.answered = False
        """Whether the workflow has returned an answer in any trial."""
