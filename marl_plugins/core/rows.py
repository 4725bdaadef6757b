"""From actions to training rows.

One action is one row, with the context that was shown. `conversation_row` merges the turns of one conversation, whose
contexts extend token for token, into a single row; every sampled token keeps its id, its log-prob and its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from marl_plugins.core.trajectory import Action, Trajectory


@dataclass
class Row:
    """One training sequence: an action with the trajectory that it belongs to.

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


@dataclass(frozen=True)
class ConversationRow:
    """A whole conversation as one sequence of length T.

    Args:
        ids: T token ids.
        sampled: T times 1 where the policy sampled the token, 0 where it was shown.
        logprobs: T log-probs, 0.0 where the token was shown.
    """

    ids: list[int]
    sampled: list[int]
    logprobs: list[float]


Turn = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""One turn as its delta: ids shown since the turn before, sampled ids, one log-prob per sampled id."""


def turns_of(actions: Sequence[Action]) -> list[Turn]:
    """The deltas of the consecutive turns of one conversation.

    Raises:
        ValueError: An action does not continue the one before it, so that merging them would change what was shown.
    """
    for last, action in zip([None, *actions[:-1]], actions, strict=True):
        if action.before is not last or (last is not None and not action.extends):
            raise ValueError(f"action {action.path} does not continue {last.path if last else 'an empty conversation'}")
    return [(a.shown_ids, a.generation.ids, a.generation.logprobs) for a in actions]


def conversation_row(turns: Sequence[Turn]) -> ConversationRow:
    """Merge the turns of one conversation; O(tokens), because turns are stored as deltas and no prefix is compared."""
    ids: list[int] = []
    sampled: list[int] = []
    logprobs: list[float] = []
    for shown, new, new_logprobs in turns:
        ids += shown
        ids += new
        sampled += [0] * len(shown)
        sampled += [1] * len(new)
        logprobs += [0.0] * len(shown)
        logprobs += new_logprobs
    return ConversationRow(ids, sampled, logprobs)
