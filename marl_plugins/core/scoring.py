"""Scores of a trajectory: of its actions while the rollout continues or afterwards, and of its outcome.

    scoring = Scoring(trajectory, score_action, last_role)
    scoring.acted(action)      each action when it ends; scoring starts at once, except for the last role's
    scoring.ended()            the workflow has ended: the last role's, of which the last one with the label
    await scoring.finish(...)

`score_trajectory` does all of it for a trajectory that has ended, whether it was rolled out here or read from a record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import Action, Trajectory

ScoreAction = Callable[[Action, "Seen"], Awaitable[float | None] | None]
"""An awaitable score, or None where this action has no scorer."""
ScoreOutcome = Callable[[Trajectory], Awaitable[float | None] | None]
"""An awaitable score, or None where outcomes have no scorer."""


@dataclass(frozen=True)
class Seen:
    """What had happened when an action was scored: a frozen view that cannot be changed by what happens later.

    There is no label here: the score of an action must not leak the ground truth. `SeenLast` has it.
    """

    task_id: str
    prompt: str
    role: str
    messages: tuple[tuple[str, str], ...]
    """The opening messages shown to the action's conversation, as (chat role, text)."""
    before: tuple[Action, ...]
    """Copies of the actions that this one depends on, directly or through others, with their tools' answers, unscored."""

    @classmethod
    def of(cls, trajectory: Trajectory, action: Action) -> Seen:
        """The view of an action: only its ancestors, because how far parallel branches have got depends on timing."""
        unscored: dict[str, Any] = {"score": None, "unscored": "", "explanation": ""}
        before = tuple(replace(a, **unscored, notes={}) for a in trajectory.ancestors(action.path))
        return cls(trajectory.task.id, trajectory.task.prompt, action.role, action.opening, before)


@dataclass(frozen=True)
class SeenLast(Seen):
    """What the scorer of the last action of the last role gets: also the ground truth and the system's answer.

    Only that action answers for the outcome (MAPPA section 3.2); all others are scored without the label.
    """

    label: Any
    answer: str | None


def checked_score(score: float | None, of: str) -> float | None:
    """A score, which must lie in [0, 1] or be None (missing).

    Raises:
        ValueError: It does not; the scorer has a bug.
    """
    if score is None:
        return None
    value = float(score)
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"the score of an {of} is {score!r}; scores lie in [0, 1] (divide a 0-10 verdict by 10)")
    return value


class Scoring:
    """The scores of one trajectory's actions.

    Args:
        score_action: None: actions are not scored, as in evaluations.
        last_role: The role whose last action is scored with the label.
    """

    def __init__(self, trajectory: Trajectory, score_action: ScoreAction | None, last_role: str | None):
        self.trajectory = trajectory
        self.score_action = score_action
        self.last_role = last_role
        self.running: dict[asyncio.Task[None], Action] = {}
        self._held: list[tuple[Action, Seen]] = []

    def acted(self, action: Action) -> None:
        """Start to score an action; the last role's wait until it is known which of them is the last."""
        if self.score_action is None:
            return
        seen = Seen.of(self.trajectory, action)
        if action.role == self.last_role:
            self._held.append((action, seen))
        else:
            self._start(action, seen)

    def ended(self) -> None:
        """The workflow has ended: score the last role's actions, the last of them with the label.

        The last is the one that the workflow returned, or else the deepest in the graph. A task without a label has none.
        """
        if not self._held:
            return
        trajectory = self.trajectory
        trajectory.sort()
        order = {action.path: n for n, action in enumerate(trajectory.actions)}
        self._held.sort(key=lambda held: (held[0].path == trajectory.returned, order[held[0].path]))
        for action, seen in self._held[:-1]:
            self._start(action, seen)
        for action, seen in self._held[-1:]:
            label = trajectory.task.label
            last = seen if label is None else SeenLast(**vars(seen), label=label, answer=trajectory.answer)
            self._start(action, last)

    def _start(self, action: Action, seen: Seen) -> None:
        assert self.score_action is not None
        try:
            verdict = self.score_action(action, seen)
        except InfrastructureFailure as failure:  # of a plain function, which is called here
            self.trajectory.actions_scored, action.unscored = True, failure.kind
            return
        if verdict is None:
            return
        self.trajectory.actions_scored = True

        async def score() -> None:
            try:
                action.score = checked_score(await verdict, f"action of role {action.role!r}")
            except InfrastructureFailure as failure:  # an unavailable verdict is missing, never invented
                action.unscored = failure.kind

        self.running[asyncio.create_task(score())] = action

    async def finish(self, seconds: float | None) -> None:
        """Wait for the scores; one that does not come within `seconds` is missing, the others stay.

        Raises:
            Exception: What a scorer raises other than `InfrastructureFailure`.
        """
        if not self.running:
            return
        done, late = await asyncio.wait(self.running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
        for task in late:
            self.running[task].unscored = "deadline"
            task.cancel()


async def score_outcome(trajectory: Trajectory, scorer: ScoreOutcome, seconds: float | None) -> None:
    """Write the outcome: the verifier's score, 0 for an agent failure, none where infrastructure failed.

    A verifier that fails or exceeds `seconds` loses the trajectory to infrastructure, like any other failure there.
    """
    if trajectory.infrastructure_failure:
        return
    if trajectory.agent_failure:
        trajectory.outcome = 0.0
        return
    async with trajectory.lost_after(seconds, "its outcome was not scored"):
        answer = scorer(trajectory)
        if answer is not None:
            trajectory.outcome = checked_score(await answer, "outcome")


async def score_trajectory(
    trajectory: Trajectory,
    action_scorer: ScoreAction | None,
    outcome_scorer: ScoreOutcome | None,
    *,
    last_role: str | None,
    seconds: float | None = None,
) -> None:
    """Score a trajectory that has ended, in place of what scores it had: every action, then the outcome.

    Args:
        action_scorer, outcome_scorer: None leaves the scores of the actions, or the outcome, as they are.
        last_role: The role whose last action is scored with the label.
        seconds: Deadline of the actions' scores, and again of the outcome's.
    """
    if trajectory.infrastructure_failure:
        return
    scoring = Scoring(trajectory, action_scorer, last_role)
    try:
        for action in trajectory.actions if action_scorer else ():
            action.score, action.unscored, action.explanation = None, "", ""
        for action in trajectory.actions:
            scoring.acted(action)
        scoring.ended()
        await scoring.finish(seconds)
    finally:
        for task in scoring.running:
            task.cancel()
        await asyncio.gather(*scoring.running, return_exceptions=True)
    if outcome_scorer is not None:
        await score_outcome(trajectory, outcome_scorer, seconds)
