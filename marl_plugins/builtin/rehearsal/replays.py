"""Trials that are played again: what differs shows state that trajectories share, clocks, or a
label that is made use of."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from marl_plugins.builtin.rehearsal.findings import LABEL, reached_line, shown_in, unlike
from marl_plugins.builtin.rehearsal.labels import MARKS, OTHER_MARKS, with_label, with_marked_label
from marl_plugins.builtin.rehearsal.trial import Stage, Trial
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.script import by_role
from marl_plugins.engine.plan.user_code_thread import run_in_thread, where_of

MAX_REPLAYED_TASKS = 4
"""Trials that are played again."""


def replayed(
    stage: Stage, task: Task, copies: Collection[str], more: Sequence[Task], trials: Sequence[Trial]
) -> list[Problem]:
    """Plays a task again, with another label, and at the same time as others; returns the first
    that differs.

    Args:
        copies: Keys of the metadata under which the label stands too.
        more: Other tasks, whose prompts and labels differ.
        trials: The first trial of the task, and others that came to their end.
    """
    if not trials[0].complete or trials[0].drew:  # which is said already
        return []
    for trial in trials[:MAX_REPLAYED_TASKS]:
        again = Replay(stage, trial, task, more)
        if problems := again.with_another_label(copies) or again.beside_others():
            return problems
    return []


@dataclass
class Replay:
    """A trial that is played again, with answers that are the same in whatever order roles are
    called.

    Args:
        more: Other tasks.
    """

    stage: Stage
    trial: Trial
    task: Task
    more: Sequence[Task]

    def with_another_label(self, copies: Collection[str]) -> list[Problem]:
        """Returns the warning about roles that are shown something else, or an answer that is
        another, for the same label, or for another one."""
        label = next((t.label for t in self.more if t.label != self.task.label), self.task.label)
        pairs = [
            [with_marked_label(self.task, copies, marks) for marks in (MARKS, OTHER_MARKS)],
            [self.task, with_label(self.task, label, copies)],
        ]
        # where roles have lines, somebody may say a real label
        for one, other in pairs[:1] if self.trial.script.lines else pairs:
            (before,), (same,), (changed,) = self._played([(0, one)], [(0, one)], [(0, other)])
            if not (before.complete and changed.complete):
                continue
            if differs := difference(before, same):
                return [
                    unlike(
                        f"{differs[1]} when the same answers are given again",
                        differs[0] or self.stage.file,
                    )
                ]
            if differs := difference(before, changed):
                place = differs[0] or reached_line(self.trial, self.stage.source, LABEL)
                return [
                    Problem(
                        "rehearsal.label_matters",
                        where_of(place or self.stage.file),
                        f"{differs[1]} where nothing but the task's label is another: agents, or "
                        "the grader, are told what it is",
                        fix="labels are for graders: what the agents see and say must not depend "
                        "on them",
                        severity="warning",
                    )
                ]
        return []

    def beside_others(self) -> list[Problem]:
        """Returns the warning about a workflow that does something else while it also works on the
        same task, where other words are said, and on another."""
        other = next((t for t in self.more if t.prompt != self.task.prompt), self.task)
        together = list(enumerate((self.task, self.task, other)))
        *alone, beside = self._played(*([one] for one in together), together)
        for (before,), after in zip(alone, beside, strict=True):
            if not before.complete:
                continue
            differs = difference(before, after)
            if after.failures:
                failure = after.failures[0]
                if "event loop" in failure.text:  # a lock of a module, of an earlier trial's loop
                    continue
                differs = failure.place, f"the workflow does not run: {failure.said},"
            if differs:
                return [
                    Problem(
                        "rehearsal.shared",
                        where_of(differs[0] or self.stage.file),
                        f"{differs[1]} when the same task, or another, is worked on at the same "
                        "time",
                        fix="keep what belongs to one task in variables of run: not in a module, "
                        "a default argument or task.metadata",
                        severity="warning",
                    )
                ]
        return []

    def _played(self, *groups: Sequence[tuple[int, Task]]) -> list[list[Trial]]:
        """The trials of groups of tasks, each on copies of its own: a task that is twice in a group
        is the same there. What is said depends on a task's number."""
        roles = list(self.stage.run.recipe.roles)
        return run_in_thread(
            lambda caught: self.stage.play_in_turn(
                [
                    [(by_role(self.trial.script, roles, n), t) for n, t in copy.deepcopy(group)]
                    for group in groups
                ],
                caught,
            )
        )


def difference(one: Trial, other: Trial) -> tuple[str, str] | None:
    """Returns what differs in another trial: a place, empty for the answer, and a clause."""
    first, second = Counter(shown(one)), Counter(shown(other))
    for place, role, name, _ in [*(second - first), *(first - second)]:
        shown_to = f"role {role!r} is shown another text in field {name!r}"
        return place, shown_to if place else "run returns another answer"
    return None


def shown(trial: Trial) -> list[tuple[str, str, str, str]]:
    """Returns everything that a trial has shown, by place, role and field; of its answer the text
    alone."""
    answer = str(trial.trajectory.answer if trial.trajectory else "")
    texts = [(call.place, call.spec.name, name, text) for call, name, text in shown_in(trial.calls)]
    return [*texts, ("", "", "", answer)]
