"""The result of a run's rehearsal, for whoever tries something on it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Trajectory

Score = Callable[[Trajectory], Coroutine[Any, Any, None]]
"""Writes scores onto a trajectory, and raises where one is wrong."""


class RehearsalResult:
    """The result of a run's rehearsal, for plugins that try their scorers on it in
    `marl_configure`: `run.state(RehearsalResult)`."""

    def __init__(self) -> None:
        self.trajectories: dict[str, Trajectory] = {}
        """By when they came about, as in "every answer is a word"; empty where the run was not
        rehearsed."""
        self.others: list[dict[str, Trajectory]] = []
        """The same of tasks of another kind."""
        self.fullest: Trajectory | None = None
        """The first of those in which most roles acted."""
        self.sure = False
        """Whether their task is one of the run's, and not invented."""
        self.answered = False
        """Whether the workflow has returned an answer in any trial."""
        self.by_role = False
        """Whether the grader has given one outcome per role."""
        self.scorer_trial: Callable[[str, Score, Any], list[Problem]] | None = None
        """How the rehearsal tries a scorer; None where the run was not rehearsed."""

    def try_scorer(self, what: str, score: Score, function: Any) -> list[Problem]:
        """Scores copies of the trajectories, and returns what is wrong and, as warnings, what may
        be; nothing where the run was not rehearsed.

        Args:
            what: Name of the scorer, for messages.
            score: Writes scores onto a trajectory; raises where one is wrong.
            function: The user's function, whose file and line are named; None where there is none.
        """
        return self.scorer_trial(what, score, function) if self.scorer_trial else []
