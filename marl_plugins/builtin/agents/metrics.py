"""Counts what programs do that workflows do not, and ends a run whose program does not work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from marl_plugins.builtin.agents.session import NOTE
from marl_plugins.builtin.agents.workflow import LOST
from marl_plugins.core.failures import RunPaused
from marl_plugins.core.steps import StepPart
from marl_plugins.core.trajectory import Trajectory


class ProgramCounts(StepPart):
    """Counts one step.

    Args:
        trajectories: Of the step.
    """

    def __init__(self, trajectories: int):
        self.trajectories = trajectories
        self.lost = 0
        self.reopened: Counter[tuple[str, str]] = Counter()

    def arrived(self, trajectory: Trajectory) -> None:
        """Counts a trajectory.

        Raises:
            RunPaused: Of more than half of the step the program has ended before it was answered.
        """
        for action in trajectory.actions:
            later = (
                action.before is not None and action.before.call == action.call
            )  # turn of the same call
            if (reason := action.notes.get(NOTE, {}).get("reopened")) and not later:
                self.reopened[action.role, reason] += 1
        if trajectory.infrastructure_failure == LOST:
            self.lost += 1
            if 2 * self.lost > self.trajectories:
                raise RunPaused(
                    f"the program has ended without an answer in {self.lost} of "
                    f"{self.trajectories} trajectories, at last in "
                    f"{trajectory.name}: {trajectory.detail}"
                )

    def metrics(self) -> Mapping[str, float]:
        """Returns `role/ROLE/reopened/REASON`, the number of sequences that began although their
        request had a history."""
        return {
            f"role/{role}/reopened/{reason}": float(n)
            for (role, reason), n in sorted(self.reopened.items())
        }
