"""Trials that are played again: what differs shows state that trajectories share, clocks, or a
label that is made use of."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Sequence

from marl_plugins.builtin.rehearsal.findings import LABEL, SAID, reached_line, shown_in, unlike
from marl_plugins.builtin.rehearsal.labels import OTHER_MARKS, with_label, with_marked_label
from marl_plugins.builtin.rehearsal.trial import Stage, Trial
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.script import SHOWN_CHARS, by_role
from marl_plugins.engine.plan.user_code_thread import run_in_thread, where_of

BEFORE_CHARS = 20
"""What is shown of two texts before they differ."""
MAX_REPLAYED_TASKS = 4
"""Trials that are played again."""
Shown = tuple[str, str, str, str]
"""Place, role, field and text; of the answer: the last one alone."""


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


class Replay:
    """A trial that is played again, with answers that are the same in whatever order roles are
    called.

    Args:
        more: Other tasks.
    """

    def __init__(self, stage: Stage, trial: Trial, task: Task, more: Sequence[Task]):
        self.stage, self.trial, self.task, self.more = stage, trial, task, more
        self.roles = list(stage.run.recipe.roles)

    def with_another_label(self, copies: Collection[str]) -> list[Problem]:
        """Returns the warning about roles that are shown something else, or an answer that is
        another, for the same label, or for another one."""
        label = next((t.label for t in self.more if t.label != self.task.label), self.task.label)
        marked = (
            with_marked_label(self.task, copies),
            with_marked_label(self.task, copies, OTHER_MARKS),
        )
        real = (self.task, with_label(self.task, label, copies))
        said_by_roles = bool(self.trial.script.lines)  # somebody may say a real label
        for one, other in [marked] if said_by_roles else [marked, real]:
            (before,), (same,), (changed,) = self._played([one], [one], [other])
            if not (before.complete and changed.complete):
                continue
            if differs := difference(before, same):
                said = f"{differs[1]} when the same answers are given again"
                return [unlike(said, differs[0] or self.stage.file)]
            if differs := difference(before, changed):
                place = differs[0] or reached_line(self.trial, self.stage.source, LABEL)
                said = (
                    f"{differs[1]} where nothing but the task's label is another: agents, or the "
                    "grader, are told what it is"
                )
                fix = "labels are for graders: what the agents see and say must not depend on them"
                where = where_of(place or self.stage.file)
                return [
                    Problem("rehearsal.label_matters", where, said, fix=fix, severity="warning")
                ]
        return []

    def beside_others(self) -> list[Problem]:
        """Returns the warning about a workflow that does something else while it also works on the
        same task, where other words are said, and on another."""
        other = next((t for t in self.more if t.prompt != self.task.prompt), self.task)
        (alone,), (other_alone,), (one, two, three) = self._played(
            [self.task], [other], [self.task, self.task, other]
        )
        for before, beside in ((alone, one), (alone, two), (other_alone, three)):
            if not before.complete:
                continue
            differs = difference(before, beside, same_words=False)
            if beside.failures:
                failure = beside.failures[0]
                if "event loop" in failure.text:  # a lock of a module, of an earlier trial's loop
                    continue
                differs = failure.place, f"the workflow does not run: {failure.said},"
            rest = [trial for trial in (one, two, three) if trial is not beside]
            differs = differs or foreign_words(beside, rest)
            if differs:
                said = f"{differs[1]} when the same task, or another, is worked on at the same time"
                fix = (
                    "keep what belongs to one task in variables of run: not in a module, a default "
                    "argument or task.metadata"
                )
                where = where_of(differs[0] or self.stage.file)
                return [Problem("rehearsal.shared", where, said, fix=fix, severity="warning")]
        return []

    def _played(self, *groups: Sequence[Task]) -> list[list[Trial]]:
        """The trials of groups of tasks, each on copies of its own: a task that is twice in a group
        is the same there. Those of one group say different words."""
        return run_in_thread(
            lambda caught: self.stage.play_in_turn(
                [
                    [
                        (by_role(self.trial.script, self.roles, nth), task)
                        for nth, task in enumerate(copy.deepcopy(group))
                    ]
                    for group in groups
                ]
            )
        )


def difference(one: Trial, other: Trial, *, same_words: bool = True) -> tuple[str, str] | None:
    """Returns what differs in another trial: a place, empty for the answer, and a clause.

    Args:
        same_words: Whether roles say the same in both; else one word stands for all.
    """
    first, second = (
        Counter(shown(t) if same_words else map(without_words, shown(t))) for t in (one, other)
    )
    gone, new = first - second, second - first
    if not (gone or new):
        return None
    place, role, name, _ = next(iter(new or gone))
    text, again = (
        next((t for *at, t in found if at == [place, role, name]), "nothing")
        for found in (gone, new)
    )
    text, again = parting(text, again)
    if not place:
        return place, f"run returns {text!r}, and {again!r}"
    return place, f"role {role!r} is shown {text!r} in field {name!r}, and {again!r}"


def foreign_words(trial: Trial, others: Sequence[Trial]) -> tuple[str, str] | None:
    """Returns where a trial shows what was said in others alone, as `difference` does."""
    own = words_of(trial)
    foreign = {word for other in others for word in words_of(other)} - own
    for place, role, name, text in shown(trial):
        if foreign.intersection(SAID.findall(text)):
            what = f"role {role!r} is shown in field {name!r}" if place else "run returns"
            return place, f"{what} what was said in another trajectory"
    return None


def words_of(trial: Trial) -> set[str]:
    """Returns what roles may say in a trial."""
    return {text for lines in trial.script.lines.values() for text in lines if text}


def parting(one: str, other: str) -> tuple[str, str]:
    """Returns what a reader needs to see of two long texts: from shortly before they differ."""
    differ = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    start = max(0, next(differ, min(len(one), len(other))) - BEFORE_CHARS)
    lead = "..." if start else ""
    end = start + SHOWN_CHARS
    return f"{lead}{one[start:end]}", f"{lead}{other[start:end]}"


def without_words(one: Shown) -> Shown:
    """Returns what was shown with one word for all."""
    return *one[:3], SAID.sub("...", one[3])


def shown(trial: Trial) -> list[Shown]:
    """Returns everything that a trial has shown, and its answer."""
    answer = str(trial.trajectory.answer if trial.trajectory else "")
    texts = [(call.place, call.spec.name, name, text) for call, name, text in shown_in(trial.calls)]
    return [*texts, ("", "", "", answer)]
