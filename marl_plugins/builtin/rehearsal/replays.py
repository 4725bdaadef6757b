"""Trials that are played again: what differs shows state that trajectories share, clocks, or a
label that is made use of."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from marl_plugins.builtin.rehearsal.findings import (
    LABEL,
    SAID,
    ancestors,
    lost_dependency,
    reached_line,
    shown_in,
)
from marl_plugins.builtin.rehearsal.labels import OTHER_MARKS, with_label, with_marked_label
from marl_plugins.builtin.rehearsal.noted import plain
from marl_plugins.builtin.rehearsal.trial import Stage, Trial
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.apart import run_apart, where_of
from marl_plugins.engine.plan.script import SHOWN_CHARS, TOOL, WORD, Script, by_role

BEFORE_CHARS = 20
"""What is shown of two texts before they differ."""
MOST_PARTS = 12
"""Words of an answer that are replaced."""
MOST_TRIED = 40
"""Trials with a word replaced."""
PART = "partzqx"
"""A word that occurs nowhere else."""
MAX_REPLAYED_TASKS = 4
"""Scripts of the search that are played again."""
SHARED = (
    "keep what belongs to one task in variables of run: not in a module, a default argument "
    "or task.metadata"
)
Shown = tuple[str, str, str, str]
"""Place, role, field and text; of the answer: the last one alone."""


def replayed(
    stage: Stage, task: Task, copies: Collection[str], more: Sequence[Task], trials: Sequence[Trial]
) -> list[Problem]:
    """Plays a task again: as it was, with another label, and at the same time as others; returns
    the first that differs.

    Args:
        copies: Keys of the metadata under which the label stands too.
        more: Other tasks, whose prompts and labels differ.
        trials: The first trial of the task, and what the search has found.
    """
    first = trials[0]
    if not first.complete or first.drew:  # which is said already
        return []
    second = run_apart(partial(stage.play, first.script, with_marked_label(task, copies)))
    found = (
        [unlike(stage, differs)]
        if second.complete and (differs := difference(first, second, in_order=False))
        else []
    )
    answered = [t for t in trials[1:] if t.complete and t.script.lines][:MAX_REPLAYED_TASKS]
    for trial in [first, *answered]:
        again = Replay(
            stage, by_role(trial.script, list(stage.run.recipe.roles)), task, more, trial
        )
        found = (
            found
            or again.with_another_label(copies)
            or again.beside_others()
            or again.with_words_of_others()
        )
    return [*found, *lost_parts(stage, task, [trial.script for trial in answered])]


def lost_parts(stage: Stage, task: Task, scripts: Sequence[Script]) -> list[Problem]:
    """Returns warnings about roles that are shown a part of what another one said, on which they do
    not depend.

    Each word of an answer is replaced in turn by one that occurs nowhere else, whatever the
    workflow reads the answer with.
    """
    tried = (
        (by, script.saying(by, *lines[:-1], f"{line[: match.start()]}{PART}{line[match.end() :]}"))
        for script in scripts
        for by, lines in script.lines.items()
        if not by.startswith(TOOL) and (line := lines[-1]) is not None
        for match in islice(re.finditer(r"\w+", line), MOST_PARTS)
    )
    some = list(islice(tried, MOST_TRIED))
    played = run_apart(
        lambda caught: [
            (by, stage.play_in_turn([[(s, copy.deepcopy(task))]])[0][0]) for by, s in some
        ]
    )
    found: dict[tuple[str, str, str], str] = {}
    for speaker, trial in played:
        by_path = {call.action.path: call.action for call in trial.calls if call.action is not None}
        for call, name, text in shown_in(trial.calls):
            seen = (
                [by_path[path].role for path in ancestors(call.action, by_path)]
                if PART in text
                else [speaker]
            )
            if speaker not in seen:
                found.setdefault((call.place, call.spec.name, name), speaker)
    return [lost_dependency(*where, [speaker]) for where, speaker in found.items()]


@dataclass
class Replay:
    """A replay is what is played again.

    Args:
        script: Answers that are the same in whatever order roles are called (`by_role`).
        more: Other tasks.
        trial: One of these answers.
    """

    stage: Stage
    script: Script
    task: Task
    more: Sequence[Task]
    trial: Trial

    def with_another_label(self, copies: Collection[str]) -> list[Problem]:
        """Returns the warning about roles that are shown something else, or an answer that is
        another, for another label."""
        marked = (
            with_marked_label(self.task, copies),
            with_marked_label(self.task, copies, OTHER_MARKS),
        )
        label = next((t.label for t in self.more if t.label != self.task.label), self.task.label)
        real = (
            self.task,
            with_label(self.task, label, copies),
        )  # a workflow may need labels that there are
        for pair in (
            [marked] if self.trial.script.lines else [marked, real]
        ):  # else somebody may say the label
            before, after, other = self._played([pair[0]], [pair[0]], [pair[1]])
            if not (before[0].complete and other[0].complete):
                continue
            if differs := difference(before[0], after[0]):
                return [unlike(self.stage, differs)]
            if differs := difference(before[0], other[0]):
                fix = "labels are for graders: what the agents see and say must not depend on them"
                place = (
                    differs[0]
                    or reached_line(self.trial, self.stage.source, LABEL)
                    or self.stage.file
                )
                said = (
                    f"{differs[1]} where nothing but the task's label is another: agents, or "
                    "the grader, are told what it is"
                )
                return [
                    Problem(
                        "rehearsal.label_matters",
                        where_of(place),
                        said,
                        fix=fix,
                        severity="warning",
                    )
                ]
        return []

    def beside_others(self) -> list[Problem]:
        """Returns the warning about a workflow that does something else while it also works on the
        same task, and on another."""
        other = next((t for t in self.more if t.prompt != self.task.prompt), self.task)
        (alone,), (other_alone,), (one, two, three) = self._played(
            [self.task], [other], [self.task, self.task, other]
        )
        for before, beside in ((alone, one), (alone, two), (other_alone, three)):
            differs = difference(before, beside) if before.complete else None
            if before.complete and beside.failures:
                failure = beside.failures[0]
                if (
                    "event loop" in failure.text
                ):  # a lock of a module, which belongs to the loop of an earlier trial
                    continue
                differs = failure.place, f"the workflow does not run: {failure.said},"
            if differs:
                place = differs[0] or self.stage.file
                said = f"{differs[1]} when the same task, or another, is worked on at the same time"
                return [
                    Problem(
                        "rehearsal.shared", where_of(place), said, fix=SHARED, severity="warning"
                    )
                ]
        return []

    def with_words_of_others(self) -> list[Problem]:
        """Returns the warning about a workflow that takes what was said in another trajectory of
        the task for its own."""
        roles = list(self.stage.run.recipe.roles)
        scripts = [by_role(self.trial.script, roles, nth) for nth in range(2)]
        task = copy.deepcopy(self.task)
        pairs = [(script, task) for script in scripts]
        first, second = run_apart(lambda caught: self.stage.play_in_turn([pairs]))[0]
        for trial, other in ((first, scripts[1]), (second, scripts[0])):
            foreign = {text for lines in other.lines.values() for text in lines if text} - {
                text for lines in trial.script.lines.values() for text in lines if text
            }
            for place, role, name, text in shown(trial):
                if foreign.intersection(SAID.findall(text)):
                    what = f"role {role!r} is shown in field {name!r}" if place else "run returns"
                    said = f"{what} what was said in another trajectory, which ran at the same time"
                    return [
                        Problem(
                            "rehearsal.shared",
                            where_of(place or self.stage.file),
                            said,
                            fix=SHARED,
                            severity="warning",
                        )
                    ]
        return []

    def _played(self, *groups: Sequence[Task]) -> list[list[Trial]]:
        """The trials of groups of tasks, each on copies of its own: a task that is twice in a group
        is the same there."""
        return run_apart(
            lambda caught: self.stage.play_in_turn(
                [[(self.script, t) for t in copy.deepcopy(group)] for group in groups]
            )
        )


def unlike(stage: Stage, differs: tuple[str, str]) -> Problem:
    """Returns the warning about a workflow that does something else when it is run again with the
    same answers."""
    fix = (
        "a run that is resumed has to repeat: draw from random.Random(task.id); use no clock, "
        "and no state of the process"
    )
    said = f"{differs[1]} when the same answers are given again"
    return Problem(
        "rehearsal.unlike", where_of(differs[0] or stage.file), said, fix=fix, severity="warning"
    )


def difference(one: Trial, other: Trial, *, in_order: bool = True) -> tuple[str, str] | None:
    """Returns what differs in another trial: a place, empty for the answer, and a clause.

    Args:
        in_order: Whether each role has words of its own; else a word says when it was called, which
            may be another time.
    """
    first, second = (
        Counter(shown(trial) if in_order else map(without_words, shown(trial)))
        for trial in (one, other)
    )
    gone, new = first - second, second - first
    if not (gone or new):
        return None
    place, role, name, _ = next(iter(new or gone))
    text, again = (
        next((t for *place_, t in found if place_ == [place, role, name]), "nothing")
        for found in (gone, new)
    )
    text, again = parting(text, again)
    if not place:
        return place, f"run returns {text!r}, and {again!r}"
    return place, f"role {role!r} is shown {text!r} in field {name!r}, and {again!r}"


def parting(one: str, other: str) -> tuple[str, str]:
    """Returns what a reader needs to see of two long texts: from shortly before they differ."""
    differ = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    start = max(0, next(differ, min(len(one), len(other))) - BEFORE_CHARS)
    lead = "..." if start else ""
    return (
        f"{lead}{one[start : start + SHOWN_CHARS]}",
        f"{lead}{other[start : start + SHOWN_CHARS]}",
    )


def without_words(one: Shown) -> Shown:
    """Returns what was shown with one word for all."""
    return *one[:3], SAID.sub(WORD, one[3])


def shown(trial: Trial) -> list[Shown]:
    """Returns everything that a trial has shown, and its answer."""
    answer = plain(str(trial.trajectory.answer if trial.trajectory else ""))
    texts = [(call.place, call.spec.name, name, text) for call, name, text in shown_in(trial.calls)]
    return [*texts, ("", "", "", answer)]
