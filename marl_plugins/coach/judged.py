"""The verdicts on a rollout as a part of its step: with `--train.async_enable` it may wait to be
trained, in a saved step too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins import Step, StepPart
from marl_plugins.coach.metrics import JudgedAction
from marl_plugins.coach.notes import noted_verdict

if TYPE_CHECKING:
    from marl_plugins import Action, Row
    from marl_plugins.coach.state import CoachState

Place = tuple[int | str, ...]
"""Where an action is in its step: task, sample and path, and what its trajectory is a fork of."""


class JudgedRollout(StepPart):
    """Keeps the verdicts on the actions of one step. What a verdict says is in the action's own
    notes."""

    def __init__(self, state: CoachState, step: Step):
        self.state, self.step = state, step

    @property
    def actions(self) -> Iterator[tuple[Place, Action]]:
        """The actions of the step."""
        return (
            ((t.place, t.sample, a.path, *(t.forked or ())), a)
            for t in self.step.trajectories
            for a in t.actions
        )

    async def rows(self, rows: Sequence[Row]) -> None:
        for _, action in self.actions:  # those of trajectories that have left the step
            self.state.verdicts.pop(action, None)

    def record(self) -> dict[str, Any]:
        verdicts = self.state.verdicts
        return {
            "last": [
                [*place, verdicts[action].last]
                for place, action in self.actions
                if action in verdicts
            ]
        }

    def restore(self, record: Any) -> None:
        actions = dict(self.actions)
        for *place, last in record["last"]:
            action = actions[tuple(place)]
            self.state.verdicts[action] = JudgedAction(action, noted_verdict(action), last)
