"""Plays the trials of a workflow, and reports what they show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from marl_plugins.builtin.rehearsal.examples import demonstrated
from marl_plugins.builtin.rehearsal.findings import (
    answered_labels,
    drawn,
    lost_dependencies,
    never_awaited,
    never_ended,
    not_reached,
    shown_labels,
    shown_nothing,
    swallowed,
    uncalled,
    unended,
    waited,
)
from marl_plugins.builtin.rehearsal.labels import with_marked_label
from marl_plugins.builtin.rehearsal.replays import replayed
from marl_plugins.builtin.rehearsal.shown import shown_objects, unshown_fields
from marl_plugins.builtin.rehearsal.traced import Trace
from marl_plugins.builtin.rehearsal.trial import MAX_ROLE_CALLS, Stage, Trial
from marl_plugins.builtin.rehearsal.variants import variants_of
from marl_plugins.core.loading import NOT_USERS
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.script import (
    ONES,
    TOOL,
    WORDS,
    FailureText,
    Script,
    example_scripts,
)
from marl_plugins.engine.plan.user_code_thread import (
    Capture,
    run_in_thread,
    sort_out,
    where_of,
)
from marl_plugins.engine.plan.workflow_file import Explorer, WorkflowFile

EXAMPLE = Task("example", "an example", "0")
"""Rehearsed where the run's own tasks are not known."""
WORKFLOW = "the workflow"
"""What is tried, in messages."""
MORE = 12
"""Tasks whose demonstrations are said."""
LONG = 10 * MAX_ROLE_CALLS
"""Calls after which a loop is taken for one without an end; after the first, fewer are waited
for."""


class Rehearser:
    """Plays a workflow's trials.

    Args:
        task: The first; None where it is invented.
        copies: Keys of the metadata under which the label stands too.
        more: Other tasks, of which the first ones' demonstrations may lead further.
    """

    def __init__(
        self, stage: Stage, task: Task | None, copies: Collection[str], more: Sequence[Task]
    ):
        self.stage = stage
        self.run = stage.run
        self.sure = task is not None
        self.task = task or EXAMPLE
        self.copies = copies
        self.more = more
        self.examples = example_scripts(self.run.recipe.roles)
        self.reached = Trace(stage.source)
        self.count = 0
        self.most_calls = LONG
        self.longest: Trial | None = None
        self.problems: list[Problem] = []

    @property
    def wrong(self) -> bool:
        """Returns whether a mistake was found."""
        return any(problem.severity == "error" for problem in self.problems)

    def rehearse(self, others: Sequence[Task], result: RehearsalResult) -> list[Problem]:
        """Plays everything, on other tasks too, and returns what is wrong: errors, which no answer
        would change, and warnings: a run might end there, or learn something else than was meant.

        Args:
            result: Is told what the workflow left.

        Raises:
            UserCodeTimeout: The workflow blocks.
        """
        first = self._played(self.task, [WORDS, ONES])
        waits = bool(waited(first, self.stage.file))
        stated = [] if waits else self._played(self.task, [*self.examples, *self._variants()])
        demonstrations = demonstrated(self.run, [self.task, *self.more[:MORE]] if self.sure else [])
        guessed = [] if waits else self._played(self.task, self._guesses(demonstrations))
        here = [*first, *stated, *guessed]
        sometimes = self._judge(WORKFLOW, first, [*stated, *guessed])
        wrong = {problem.where for problem in self.problems}
        for trial in stated:  # somebody says what the recipe states
            stated_failures = [f for f in trial.failures if where_of(f.place) not in wrong]
            self._add(f.warning(WORKFLOW, trial.script.when).as_error() for f in stated_failures)
        self._add(sometimes)
        if not self.wrong:
            self._add(problem for trial in here for problem in shown_objects(trial))
        elsewhere: list[Trial] = []
        for task in [] if waits or self.wrong else others:
            trials = self._played(task, [WORDS, ONES, *self.examples[:1]])
            self._add(self._judge(f"{WORKFLOW}, on task {task.id!r},", trials[:2], trials[2:]))
            result.others.append(left(trials))
            elsewhere += trials
        self._remark(first, stated, here, elsewhere, others)
        kept = [*first, *stated[: len(self.examples[:1])]]
        complete = [trial for trial in here if trial.complete and trial not in kept]
        kept += complete[: max(0, 2 - sum(trial.complete for trial in kept))]
        result.trajectories, result.sure = left(kept), self.sure
        ended = [(trial.complete, trial.trajectory) for trial in here if trial.trajectory]
        result.answered = any(trajectory.answer is not None for _, trajectory in ended)
        if ended:
            most = max(ended, key=lambda one: (len({a.role for a in one[1].actions}), one[0]))
            result.fullest = most[1]
        return self.problems

    def _played(self, task: Task, scripts: Iterable[Script]) -> list[Trial]:
        """Plays scripts, one after the other.

        The task has a label that can be recognised; a workflow that may need the real one is tried
        again with it.
        """
        marked = with_marked_label(task, self.copies)

        def play(caught: Capture) -> list[Trial]:
            return [self._one(script, marked, task, caught) for script in scripts]

        return run_in_thread(play)

    def _one(self, script: Script, marked: Task, task: Task, caught: Capture) -> Trial:
        self.count += 1
        play = partial(self.stage.play, script, caught=caught)
        trial = play(marked, most_calls=self.most_calls)
        if trial.endless and self.longest is None:
            self.longest, self.most_calls = trial, MAX_ROLE_CALLS
            trial = play(marked, most_calls=self.most_calls)
        self.reached.add(trial.reached)
        self._add(shown_labels(trial))
        self._add(answered_labels(trial, self.stage.source, self.stage.file))
        if marked != task and (trial.failed or script.says(task.label)):
            trial = play(task, most_calls=self.most_calls)
            self.reached.add(trial.reached)
        if trial.trajectory is not None:
            trial.trajectory.task = task
        return trial

    def _variants(self) -> list[Script]:
        """Returns what the workflow says of itself."""
        speakers = [*self.run.recipe.roles, *(f"{TOOL}{name}" for name in self.stage.functions)]
        variants, problems = variants_of(self.stage.workflow, speakers)
        self._add(problems)
        return variants

    def _guesses(self, demonstrations: Sequence[Script]) -> Iterator[Script]:
        """Yields what else may lead somewhere: the recipe's demonstrations, roles and tools that
        fail where the workflow asks for that, what a workflow that is no Python wants tried."""
        yield from demonstrations
        text = self.stage.source.text
        begin = self.examples[0] if self.examples else WORDS
        failing = list(self.run.recipe.roles) if "except" in text else []
        failing += [f"{TOOL}{name}" for name in self.stage.functions]
        yield from (begin.saying(by, FailureText("")) for by in failing if text)
        if isinstance(self.stage.workflow, WorkflowFile):
            explorer: Explorer = self.stage.workflow.explorer()
            yield from explorer.attempts()
            self._add(explorer.remarks())

    def _judge(self, what: str, first: Sequence[Trial], more: Sequence[Trial]) -> list[Problem]:
        """Keep the mistakes that trials of a task show, and return what some of them raise.

        Args:
            what: Is tried, in messages.
            more: Trials of which only those that came to their end tell what answers avoid.
        """
        tried = [*first, *(trial for trial in more if trial.complete)]
        tries = [(trial.script.when, trial.failures) for trial in tried]
        always, sometimes = sort_out(tries, what, sure=self.sure)
        trials = [*first, *more]
        forgotten = never_awaited(trials)
        self._add(f.mistake for trial in trials for f in trial.failures if f.certain)
        self._add(forgotten)
        self._add(p for p in always if not (forgotten and p.code == "rehearsal.raises"))
        for trial in trials:
            self._add([*lost_dependencies(trial), *shown_nothing(trial)])
        known = {failure.place for trial in tried for failure in trial.failures}
        searched = [
            failure.warning(what, trial.script.when)
            for trial in more
            for failure in trial.failures
            if self.sure and not failure.certain and failure.place not in known
        ]
        return [*sometimes, *searched]

    def _remark(
        self,
        first: Sequence[Trial],
        stated: Sequence[Trial],
        here: Sequence[Trial],
        elsewhere: Sequence[Trial],
        others: Sequence[Task],
    ) -> None:
        """Keep what all trials together show."""
        file, trials = self.stage.file, [*here, *elsewhere]
        caught = swallowed(
            (failure for trial in trials for failure in trial.caught),
            [self.task, *others, *self.more],
        )
        left_waiting = waited(trials, file)
        if not Path(file).is_relative_to(NOT_USERS[0]):
            self._add(left_waiting)  # else somebody else's server is slow (`env:`)
        self._add([*never_ended(trials, file), *drawn(trials, self.stage.source, file), *caught])
        if not (self.wrong or left_waiting):
            again = [first[0], *(t for t in stated if t.complete and t.script.lines)]
            self._add(replayed(self.stage, self.task, self.copies, [*others, *self.more], again))
            self._add(unused(self.stage, trials))
        unknown = self.wrong or left_waiting or any(trial.endless for trial in first)
        if not unknown and self.sure:
            missing = uncalled(trials, self.run.recipe.roles)
            problems = not_reached(self.reached, missing, file, self.count)
            self._add(p for p in problems if not (caught and p.code == "rehearsal.never_called"))
        if self.longest is not None:
            some = any(trial.complete for trial in here)
            self._add(unended(self.longest, self.longest.script.when if some else ""))

    def _add(self, problems: Iterable[Problem]) -> None:
        """Keep mistakes and warnings, of which each code is said once of a place."""
        for problem in problems:
            key = (problem.code, problem.where, problem.severity)
            if not any((p.code, p.where, p.severity) == key for p in self.problems):
                self.problems.append(problem)


def left(trials: Iterable[Trial]) -> dict[str, Trajectory]:
    """Returns the trajectories of trials, by when they came about."""
    return {t.script.when: t.trajectory for t in trials if t.trajectory is not None}


def unused(stage: Stage, trials: Sequence[Trial]) -> list[Problem]:
    """Returns what the recipe says and no trial uses: all of its roles, fields."""
    run, roles = stage.run, list(stage.run.recipe.roles)
    if len(uncalled(trials, roles)) == len(roles):
        got = "run calls no role, whatever the answers; nothing would be trained"
        return [Problem("rehearsal.no_call", where_of(stage.file), got)]
    return unshown_fields(trials, run)
