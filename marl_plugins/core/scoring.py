"""Scores of a trajectory: of its actions while the rollout continues or afterwards, and of its
outcome.

    scoring = Scoring(trajectory, score_action, last_role)
    scoring.acted(action)      each action when it ends; scoring starts at once, except for the last
                               role's
    scoring.ended()            the workflow has ended: the last role's, of which the last one with
    the label await scoring.finish(...)

`score_trajectory` does all of it for a trajectory that has ended, whether it was rolled out here or
read from a record.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from marl_plugins.core.deadlines import against, clock_of
from marl_plugins.core.failures import InfrastructureFailure, nearest, while_doing
from marl_plugins.core.trajectory import Action, File, Trajectory

ScoreAction = Callable[[Action, "Seen"], Awaitable[float | None] | None]
"""An awaitable score, or None where this action has no scorer."""
Outcome = float | Mapping[str, float | None] | None
"""What is said of a trajectory: one score for the team, or one for each role (None: the role has
none); None: missing."""
ScoreOutcome = Callable[[Trajectory], Awaitable[Outcome] | None]
"""An awaitable outcome, or None where outcomes have no scorer."""


@dataclass(frozen=True)
class Seen:
    """A view of what had happened when an action was scored: a frozen view that cannot be changed
    by what happens later.

    There is no label here: the score of an action must not leak the ground truth. `SeenLast` has
    it.
    """

    task_id: str
    prompt: str
    role: str
    messages: tuple[tuple[str, str], ...]
    """The messages that the action's call began with, as (chat role, text); after those of the
    conversation that it continues."""
    before: tuple[Action, ...]
    """Copies of the actions that this one depends on, directly or through others, with their tools'
    answers, unscored."""
    files: tuple[File, ...] = field(default=(), kw_only=True)
    """The files of the workspace when the action had been made, with who wrote them."""
    workspace: Path | None = field(default=None, kw_only=True)
    """The folder with these files. Later actions may change them meanwhile; `files` says what they
    were."""

    @classmethod
    def of(cls, trajectory: Trajectory, action: Action) -> Seen:
        """Returns the view of an action: only its ancestors, because how far parallel branches have
        got depends on timing."""
        unscored: dict[str, Any] = {"score": None, "unscored": "", "explanation": ""}
        before = tuple(replace(a, **unscored, notes={}) for a in trajectory.ancestors(action.path))
        t = trajectory
        return cls(
            t.task.id,
            t.task.prompt,
            action.role,
            action.opening,
            before,
            files=t.files,
            workspace=t.workspace,
        )


@dataclass(frozen=True)
class SeenLast(Seen):
    """The view of the last action of the last role, which has also the ground truth and the
    system's answer.

    Only that action answers for the outcome (MAPPA section 3.2); all others are scored without the
    label.
    """

    label: Any
    answer: str | None


def checked_score(score: float | None, of: str) -> float | None:
    """Returns a score, which must lie in [0, 1] or be None (missing).

    Raises:
        ValueError: It does not, or is no number; the scorer has a bug.
    """
    if score is None:
        return None
    try:
        value = float("no number" if isinstance(score, str) else score)
    except (TypeError, ValueError):
        raise ValueError(
            f"the score of an {of} is {score!r:.80}; expected a number in [0, 1], or None"
        ) from None
    if not 0.0 <= value <= 1.0:
        raise ValueError(
            f"the score of an {of} is {score!r}; scores lie in [0, 1] (divide a 0-10 verdict by 10)"
        )
    return value


async def answer_of(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Returns what a recipe's or a plugin's function answers, plain or async."""
    answer = function(*arguments, **named)
    return await answer if inspect.isawaitable(answer) else answer


def reward_function_score(reward_func: Callable[..., Any], trajectory: Trajectory) -> float:
    """Returns the outcome by upstream's reward function (`reward_func(queries, prompts, labels)` of
    `--reward.remote_url file.py`).

    Raises:
        ValueError: It returned something else than upstream takes.
    """
    task = trajectory.task
    result = reward_func([task.prompt + (trajectory.answer or "")], [task.prompt], [task.label])
    try:
        scores: Any = (
            result["scores" if "scores" in result else "rewards"]
            if isinstance(result, Mapping)
            else result
        )
        return float(scores[0])
    except (TypeError, ValueError, KeyError, IndexError):
        raise ValueError(
            f"reward_func returned {result!r:.80}; expected {{'rewards': [...]}}, or a list, with "
            "a number per query"
        ) from None


def set_outcome(trajectory: Trajectory, outcome: Outcome, roles: Collection[str]) -> None:
    """Writes a trajectory's outcome: the team's score, or each role's with their mean as the
    team's.

    Args:
        roles: Those of the recipe.

    Raises:
        ValueError: A score is not in [0, 1], a role is unknown, or one that acted is missing; the
            scorer has a bug.
    """
    of = f"outcome of task {trajectory.task.id}"
    if not isinstance(outcome, Mapping):
        trajectory.outcome, trajectory.outcomes = checked_score(outcome, of), {}
        return
    problems = [
        f"{role!r} is no role of the recipe{nearest(str(role), roles)}"
        for role in outcome
        if role not in roles
    ]
    acted = dict.fromkeys(action.role for action in trajectory.actions)
    problems += [
        f"role {role!r} acted and has none: a number, or None"
        for role in acted
        if role not in outcome
    ]
    if problems:
        raise ValueError(f"the {of} is {dict(outcome)!r}: {'; '.join(problems)}")
    scores = {
        role: checked_score(score, f"{of} for role {role!r}") for role, score in outcome.items()
    }
    trajectory.outcomes = {role: score for role, score in scores.items() if score is not None}
    trajectory.outcome = fmean(trajectory.outcomes.values()) if trajectory.outcomes else None


class ScoreCollector:
    """The scores of one trajectory's actions.

    Args:
        score_action: None: actions are not scored, as in evaluations.
        last_role: The role whose last action is scored with the label.
    """

    def __init__(
        self, trajectory: Trajectory, score_action: ScoreAction | None, last_role: str | None
    ):
        self.trajectory = trajectory
        self.score_action = score_action
        self.last_role = last_role
        self.running: dict[asyncio.Task[None], Action] = {}
        self._held: list[tuple[Action, Seen]] = []

    def acted(self, action: Action) -> None:
        """Starts to score an action; the last role's wait until it is known which of them is the
        last."""
        if self.score_action is None:
            return
        seen = Seen.of(self.trajectory, action)
        if action.role == self.last_role:
            self._held.append((action, seen))
        else:
            self._start(action, seen)

    def scored(self, action: Action, score: float) -> None:
        """Writes the score that the workflow itself has given an action; evaluations score outcomes
        alone.

        Args:
            score: In [0, 1].
        """
        if not self.trajectory.is_evaluation:
            action.score, self.trajectory.actions_scored = score, True

    def ended(self) -> None:
        """Scores, once the workflow has ended, the last role's actions, the last of them with the
        label.

        The last is the one that the workflow returned, or else the deepest in the graph. A task
        without a label has none.
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
            last = (
                seen
                if label is None
                else SeenLast(**vars(seen), label=label, answer=trajectory.answer)
            )
            self._start(action, last)

    def _start(self, action: Action, seen: Seen) -> None:
        assert self.score_action is not None
        task = self.trajectory.task.id

        def describe() -> str:
            return (
                f"while role {action.role!r} was scored for {action.text!r:.200}, on task {task!r}"
            )

        try:
            with while_doing(describe):
                verdict = self.score_action(action, seen)
        except InfrastructureFailure as failure:  # of a plain function, which is called here
            self.trajectory.actions_scored, action.unscored = True, failure.kind
            return
        if verdict is None:
            return
        self.trajectory.actions_scored = True

        async def score() -> None:
            try:
                with while_doing(describe):
                    action.score = checked_score(await verdict, f"action of role {action.role!r}")
            except (
                InfrastructureFailure
            ) as failure:  # an unavailable verdict is missing, never invented
                action.unscored = failure.kind

        self.running[asyncio.create_task(score())] = action

    async def finish(self, seconds: float | None) -> None:
        """Waits for the scores; one that does not come within `seconds` is missing, the others
        stay.

        Raises:
            Exception: What a scorer raises other than `InfrastructureFailure`.
        """
        if not self.running:
            return
        done, late = await asyncio.wait(
            self.running, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION
        )
        for task in done:
            task.result()
        for task in late:
            self.running[task].unscored = "deadline"
            task.cancel()


def describe_answer(trajectory: Trajectory) -> str:
    """Returns the answer to a task, and which task it is, for a message."""
    answer = "no answer" if trajectory.answer is None else f"the answer {trajectory.answer!r:.200}"
    return f"{answer} to task {trajectory.task.id!r}, sample {trajectory.sample},"


async def score_outcome(
    trajectory: Trajectory, scorer: ScoreOutcome, seconds: float | None, roles: Collection[str]
) -> None:
    """Writes the outcome: the verifier's score, 0 for an agent failure (for every role), none where
    infrastructure failed.

    A verifier that fails or exceeds `seconds` loses the trajectory to infrastructure, like any
    other failure there. Its wait in a queue does not count (`not_counted` of deadlines.py).

    Args:
        roles: Those of the recipe, which may have outcomes of their own.
    """
    if trajectory.infrastructure_failure:
        return
    if trajectory.agent_failure:
        set_outcome(trajectory, 0.0, roles)
        return
    lost = trajectory.lost_after(seconds, "its outcome was not scored")
    async with lost as deadline:
        doing = while_doing(lambda: f"while {describe_answer(trajectory)} was scored")
        with clock_of(deadline) as clock, against(clock), doing:
            answer = scorer(trajectory)
            if answer is not None:
                set_outcome(trajectory, await answer, roles)


async def score_trajectory(
    trajectory: Trajectory,
    action_scorer: ScoreAction | None,
    outcome_scorer: ScoreOutcome | None,
    *,
    roles: Sequence[str],
    seconds: float | None = None,
) -> None:
    """Scores a trajectory that has ended, in place of what scores it had: every action, then the
    outcome.

    Args:
        action_scorer, outcome_scorer: None leaves the scores of the actions, or the outcome, as
            they are.
        roles: Those of the recipe; the last one's last action is scored with the label.
        seconds: Deadline of the actions' scores, and again of the outcome's.
    """
    if trajectory.infrastructure_failure:
        return
    scoring = ScoreCollector(trajectory, action_scorer, roles[-1])
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
        await score_outcome(trajectory, outcome_scorer, seconds, roles)
