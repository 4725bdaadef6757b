"""Turns actions into training rows: one action is one row. What goes through the model is made of
them in core/sequences.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from marl_plugins.core.trajectory import Action, Trajectory, path_order


@dataclass(eq=False)
class Row:
    """An action as it is trained, with the trajectory that it belongs to.

    `reward` is the return over the estimator's scope that lands on the last token of the action;
    `weight` multiplies its advantages after the estimator's last stage, and may be set until then.
    """

    trajectory: Trajectory
    action: Action
    reward: float
    weight: float = 1.0

    @property
    def name(self) -> str:
        """`task/sample/path`, for messages."""
        return f"{self.trajectory.name}/{self.action.path}"

    @property
    def order(self) -> tuple[str, str, int, tuple[str, int], tuple[str, int]]:
        """Returns the key that says where the row belongs among all rows, whatever order they
        arrived in."""
        t = self.trajectory
        fork = t.forked or ("", 0)
        return (t.task.id, t.origin, t.sample, fork, path_order(self.action.path))


def impossible(trajectory: Trajectory, action: Action, trainable: Collection[str]) -> str | None:
    """Returns why an action cannot be trained on, whatever reward it gets; None where it can."""
    if trajectory.infrastructure_failure:
        return f"infrastructure:{trajectory.infrastructure_failure}"
    if action.policy not in trainable:
        return "frozen"
    if action.replayed:
        return "replayed"
    if trajectory.learner not in ("", action.policy):
        return "read for another policy"
    return None if action.generation.ids else "nothing sampled"


def rows_of(trajectories: Iterable[Trajectory], trainable: Collection[str]) -> list[Row]:
    """Returns the rows that may be trained on, in the order of the trajectories; every other action
    is told why it is left out."""
    rows = []
    for trajectory in trajectories:
        for action in trajectory.actions:
            if reason := impossible(trajectory, action, trainable):
                action.left_out = reason
            elif action.returns is None:
                action.left_out = (
                    f"infrastructure:{action.unscored}" if action.unscored else "no score"
                )
            else:
                rows.append(Row(trajectory, action, action.returns))
    return rows


def auxiliary_rows(trajectories: Iterable[Trajectory], due: Collection[str]) -> list[Row]:
    """Makes the rows of policies that play no role; an action without a reward says itself why it
    is left out.

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


def rows_to_be(trajectories: Iterable[Trajectory], policy: str) -> list[Row]:
    """Returns the actions of a policy that may become rows, before they have rewards: each with the
    reward 0."""
    return [
        Row(t, action, 0.0)
        for t in trajectories
        for action in t.actions
        if not impossible(t, action, (policy,))
    ]
