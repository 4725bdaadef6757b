"""From actions to training rows: one action is one row. What goes through the model is made of them in core/sequences.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from marl_plugins.core.trajectory import Action, Trajectory


@dataclass
class Row:
    """An action as it is trained, with the trajectory that it belongs to.

    `reward` is the return over the estimator's scope that lands on the last token of the action.
    """

    trajectory: Trajectory
    action: Action
    reward: float

    @property
    def name(self) -> str:
        """`task/sample/path`, for messages."""
        return f"{self.trajectory.task.id}/{self.trajectory.sample}/{self.action.path}"

    @property
    def order(self) -> tuple[str, int, str]:
        """Where the row belongs among all rows, whatever order they arrived in."""
        return (self.trajectory.task.id, self.trajectory.sample, self.action.path)


def rows_of(trajectories: Iterable[Trajectory], trainable: frozenset[str]) -> list[Row]:
    """The rows that may be trained on, in the order of the trajectories; every other action is told why it is left out."""
    rows = []
    for trajectory in trajectories:
        for action in trajectory.actions:
            if trajectory.infrastructure_failure:
                action.left_out = f"infrastructure:{trajectory.infrastructure_failure}"
            elif action.policy not in trainable:
                action.left_out = "frozen"
            elif not action.generation.ids:
                action.left_out = "nothing sampled"
            elif action.returns is None:
                action.left_out = f"infrastructure:{action.unscored}" if action.unscored else "no score"
            else:
                rows.append(Row(trajectory, action, action.returns))
    return rows


def auxiliary_rows(trajectories: Iterable[Trajectory], due: Collection[str]) -> list[Row]:
    """The rows of policies that play no role (`marl_auxiliary`); an action without a reward says itself why it is left out.

    Args:
        due: The policies that are updated in this step.
    """
    rows = []
    for trajectory in trajectories:
        for action in trajectory.actions:
            if action.policy not in due:
                action.left_out = "frozen"
            elif action.reward is not None:
                action.returns = action.reward
                rows.append(Row(trajectory, action, action.reward))
    return rows
