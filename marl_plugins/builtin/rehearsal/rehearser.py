"""Plays the trials of a workflow, and reports what they show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from marl_plugins.builtin.rehearsal.candidates import AnswerKnowledge
from marl_plugins.builtin.rehearsal.examples import demonstrated
from marl_plugins.builtin.rehearsal.findings import (
    answered_labels,
    drawn,
    idle_followups,
    lost_dependencies,
    never_awaited,
    never_ended,
    not_reached,
    returned_nothing,
    shown_labels,
    shown_nothing,
    swallowed,
    uncalled,
    unended,
    waited,
)
from marl_plugins.builtin.rehearsal.graph import DependencyGraph
from marl_plugins.builtin.rehearsal.labels import with_marked_label
from marl_plugins.builtin.rehearsal.reached import Coverage
from marl_plugins.builtin.rehearsal.replays import replayed
from marl_plugins.builtin.rehearsal.search import LONG, MORE_CALLS, Search
from marl_plugins.builtin.rehearsal.shown import forgotten_f, shown_objects, unshown_fields
from marl_plugins.builtin.rehearsal.trial import Stage, Trial
from marl_plugins.builtin.rehearsal.variants import speakers_of, variants_of
from marl_plugins.builtin.rehearsal.vocabulary import vocabulary_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.apart import Capture, UserCodeTimeout, run_apart, sort_out, where_of
from marl_plugins.engine.plan.script import ONES, WORDS, Script
from marl_plugins.engine.plan.workflow_file import WorkflowFile

EXAMPLE = Task("example", "an example", "0")
"""Rehearsed where the run's own tasks are not known."""
WORKFLOW = "the workflow"
"""What is tried, in messages."""
MORE = 12
"""Tasks whose demonstrations are drawn for the search."""
MAX_REPLAYED_TRIALS = 4
"""Scripts of the search that are played on tasks of another kind, too."""


@dataclass
class Rehearsal:
    """The findings of a rehearsal.

    Args:
        graph: Who saw whom.
        wrong: Mistakes that no answer would change, with file and line.
        unclear: Warnings: a run might end there, or learn something else than was meant.
        trajectories: What the workflow left, by when it did ("every answer is a word").
        others: The same of tasks of another kind.
        task: The first; None where it was invented.
        reached: What was executed of the workflow's file; None where nothing was.
        trials: Those on the first task that have reached something.
    """

    graph: DependencyGraph = field(default_factory=DependencyGraph)
    wrong: list[Problem] = field(default_factory=list)
    unclear: list[Problem] = field(default_factory=list)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    others: list[dict[str, Trajectory]] = field(default_factory=list)
    task: Task | None = None
    reached: Coverage | None = None
    trials: list[Trial] = field(default_factory=list)


class Rehearser:
    """Plays a workflow's trials.

    Args:
        task: The first; None where it is invented.
        copies: Keys of the metadata under which the label stands too.
        more: Other tasks, of which the first ones' demonstrations may lead further.
    """

    def __init__(
        self, stage: Stage, task: Task | None, copies: Collection[str], more: Sequence[Task] = ()
    ):
        self.stage = stage
        self.run = stage.run
        self.sure = task is not None
        self.task = task or EXAMPLE
        self.copies = copies
        self.more = more
        self.wrong: dict[Problem, None] = {}
        self.unclear: dict[Problem, None] = {}

    def rehearse(self, others: Sequence[Task]) -> Rehearsal:
        """Plays everything, on other tasks too, and returns what was found."""
        found = Rehearsal(task=self.task if self.sure else None)
        try:
            first = self._both(self.task)
            endless = all(trial.endless for trial in first)
            if (
                endless and not (longer := long_trial(self.stage, self.task, WORDS)).endless
            ):  # a loop of many rounds, which ends
                first, endless = [longer], False
            search = self._search(first)
            variants = self._variants(search)
            self._add(explored(self.stage.workflow, search))
            both: dict[str, list[Trial]] = {}
            if not (self.wrong or waited(first, self.stage.file)):
                for task in others:
                    both[task.id] = self._both(task)
                    search.pass_by(both[task.id])
                self._look_further(search)
            self._judge(first, variants, search)
            for task in others:
                if task.id in both and not self.wrong:  # it would say the same again
                    self._judge_other(task, both[task.id], search)
            found.others = [kept(trials) for trials in both.values()]
            self._remark(first, search, others)
            ends = any(trial.complete for trial in search.trials)
            looping = unended(longer, longer.script.when if ends else "") if endless else None
            self._add(
                loops(self.stage, self.task, [*first, *search.trials])
                if looping is None
                else looping
            )
        except UserCodeTimeout as stuck:
            found.wrong = [stuck.problem("run", self.stage.file)]
            return found
        found.wrong, found.unclear = list(self.wrong), list(self.unclear)
        found.reached, found.trials = search.reached, search.trials
        found.trajectories = kept(first, search.trials)
        found.graph = graph_of([*first, *search.trials])
        return found

    def _both(self, task: Task) -> list[Trial]:
        """Trials with words and with ones, whose mistakes are kept.

        The task has a label that can be recognised, and answers note what is looked for; a workflow
        that may need the real ones is tried again with them.
        """
        marked = with_marked_label(task, self.copies)

        def play(caught: Capture) -> list[Trial]:
            trials = []
            for script in (WORDS, ONES):
                trial = self.stage.play(script, marked, caught)
                self._add(shown_labels(trial))
                if trial.failed:
                    trial = self.stage.play(script, task, caught, noting=False).after(trial)
                if trial.trajectory is not None:
                    trial.trajectory.task = task
                trials.append(trial)
            return trials

        trials = run_apart(play)
        self._add(failure.mistake for t in trials for failure in t.failures if failure.certain)
        return trials

    def _search(self, first: Sequence[Trial]) -> Search:
        """The search, which begins with the first trials."""
        roles = list(self.run.recipe.roles)
        marked = with_marked_label(self.task, self.copies)
        known = knowledge_of(self.stage, marked)
        most_calls = MORE_CALLS + max(
            (len(trial.calls) for trial in first if not trial.endless), default=0
        )
        search = Search(
            self.stage, (marked, self.task), known, Coverage(self.stage.source), roles, most_calls
        )
        for trial in first:
            search.add(trial)
        return search

    def _variants(self, search: Search) -> list[Trial]:
        """The trials of the workflow's variants."""
        speakers = speakers_of(list(self.run.recipe.roles), list(self.stage.functions))
        variants, problems = variants_of(self.stage.workflow, speakers)
        self._add(problems)

        def play(caught: Capture) -> list[Trial]:
            trials = []
            for name, variant in variants.items():
                if isinstance(variant, Script):
                    trials.append(search.play(variant, caught))
                else:
                    script = replace(WORDS, when=f"the variant is {name!r}")
                    trials.append(search.play(script, caught, variant))
            return trials

        trials = run_apart(play) if variants else []
        for trial in trials:
            search.add(trial, keep=True)
        return trials

    def _look_further(self, search: Search) -> None:
        """Search for as long as there is something to reach, and time."""
        if search.done or isinstance(self.stage.workflow, WorkflowFile):
            return
        search.known.said.update(
            demonstrated(self.run, [self.task, *self.more[:MORE]] if self.sure else [])
        )
        while run_apart(search.run_some):
            pass

    def _judge(self, first: Sequence[Trial], variants: Sequence[Trial], search: Search) -> None:
        """Keep what the trials of the first task show: mistakes, and what some of them raise."""
        forgotten = never_awaited(search.trials)
        found = [trial for trial in search.trials if trial not in first and trial not in variants]
        always, sometimes = sort_out(
            [(t.script.when, t.failures) for t in [*first, *(t for t in found if t.complete)]],
            WORKFLOW,
            sure=self.sure,
            searched=[(t.script.when, t.failures) for t in found if not t.complete],
        )
        self._add(forgotten)
        self._add(
            problem for problem in always if not (forgotten and problem.code == "rehearsal.raises")
        )
        for trial in variants:
            self._add(
                failure.warning(WORKFLOW, trial.script.when).as_error()
                for failure in trial.failures
            )
        for trial in search.trials:
            if not search.says_the_label(trial.script):
                self._add(
                    [
                        *shown_labels(trial),
                        *answered_labels(trial, self.stage.source, self.stage.file),
                    ]
                )
            self._add([*lost_dependencies(trial), *shown_nothing(trial)])
        self._add(sometimes)
        if not self.wrong:
            self._add(problem for trial in search.trials for problem in shown_objects(trial))

    def _judge_other(self, task: Task, both: Sequence[Trial], search: Search) -> None:
        """Keep what trials on a task of another kind show: with words, with ones, and with scripts
        that the search has found."""
        what = f"{WORKFLOW}, on task {task.id!r},"
        scripts = [t.script for t in search.trials if t.complete and t.script.lines][
            :MAX_REPLAYED_TRIALS
        ]

        def play(caught: Capture) -> list[Trial]:
            return [self.stage.play(script, task, caught, noting=False) for script in scripts]

        more = run_apart(play) if scripts else []
        search.pass_by(more)
        tries = [(t.script.when, t.failures) for t in [*both, *(t for t in more if t.complete)]]
        left = [(t.script.when, t.failures) for t in more if not t.complete]
        always, sometimes = sort_out(tries, what, sure=self.sure, searched=left)
        self._add([*always, *sometimes, *lost_dependencies(both[0]), *shown_nothing(both[0])])

    def _remark(self, first: Sequence[Trial], search: Search, others: Sequence[Task]) -> None:
        """Keep what all trials together show."""
        file, trials = self.stage.file, [*search.trials, *search.elsewhere]
        caught = swallowed(
            (failure for trial in trials for failure in trial.caught),
            [self.task, *others, *self.more],
        )
        ended = [
            *waited(trials, file),
            *never_ended(trials, file),
            *drawn(trials, self.stage.source, file),
        ]
        self._add([*ended, *caught])
        if not self.wrong:
            silent = [trial for trial in search.trials if not search.says_the_label(trial.script)]
            self._add(
                replayed(
                    self.stage, self.task, self.copies, [*others, *self.more], [first[0], *silent]
                )
            )
            self._add(unused(self.stage, trials))
        if not (self.wrong or any(trial.endless or trial.left_at for trial in first)) and self.sure:
            found = not_reached(
                search.reached, uncalled(trials, self.run.recipe.roles), file, search.count
            )
            self._add(p for p in found if not (caught and p.code == "rehearsal.never_called"))

    def _add(self, problems: Iterable[Problem]) -> None:
        """Keep mistakes and warnings, of which each code is said once of a place."""
        for problem in problems:
            kept = self.wrong if problem.severity == "error" else self.unclear
            if not any(
                (other.code, other.where) == (problem.code, problem.where) for other in kept
            ):
                kept[problem] = None


def loops(stage: Stage, task: Task, trials: Iterable[Trial]) -> list[Problem]:
    """Returns the warning about a loop that some answers do not end."""
    looping = next((trial for trial in trials if trial.endless), None)
    if looping is None:
        return []
    longer = looping if len(looping.calls) >= LONG else long_trial(stage, task, looping.script)
    return unended(longer, looping.script.when) if longer.endless else []


def long_trial(stage: Stage, task: Task, script: Script) -> Trial:
    """Returns a trial of a script that may make many calls."""
    return run_apart(partial(stage.play, script, task, most_calls=LONG))


def explored(workflow: Workflow, search: Search) -> list[Problem]:
    """Plays what a workflow that is no Python says is worth a try, in place of a search in its
    text, and returns its remarks."""
    if not isinstance(workflow, WorkflowFile):
        return []
    explorer = workflow.explorer()

    def play(caught: Capture) -> None:
        for attempt in explorer.attempts():
            script = Script(attempt.when, WORDS.text, attempt.lines)
            search.add(search.play(script, caught, attempt.workflow), keep=True)

    run_apart(play)
    return explorer.remarks()


def unused(stage: Stage, trials: Sequence[Trial]) -> list[Problem]:
    """Returns what the recipe says and no trial uses: all of its roles, fields, prompts."""
    run, roles = stage.run, list(stage.run.recipe.roles)
    if len(uncalled(trials, roles)) == len(roles):
        said = "run calls no role, whatever the answers; nothing would be trained"
        return [Problem("rehearsal.no_call", where_of(stage.file), said)]
    followups = [] if "continues" in stage.source.text else idle_followups(run, trials)
    silent = returned_nothing(trials, run, stage.source, stage.file)
    return [*unshown_fields(trials, run), *forgotten_f(stage.source, roles), *followups, *silent]


def knowledge_of(stage: Stage, task: Task) -> AnswerKnowledge:
    """Returns what is known of a workflow's answers before the search: its code's vocabulary,
    names, and what the task says."""
    roles = list(stage.run.recipe.roles)
    said = [
        str(value) if isinstance(value, str | int | float) else ""
        for value in (task.label, task.id, *task.metadata.values())
    ]
    functions = {role: stage.functions_of(role) for role in roles}
    return AnswerKnowledge(
        roles,
        functions,
        vocabulary_of(stage.workflow),
        label=said[0],
        told=list(filter(None, said[1:])),
    )


def kept(first: Sequence[Trial], found: Sequence[Trial] = ()) -> dict[str, Trajectory]:
    """Returns the trajectories for scorers: of words and ones, and of two other scripts where these
    did not come to an end."""
    complete = (
        []
        if any(trial.complete for trial in first)
        else [trial for trial in found if trial.complete]
    )
    most = sorted(complete, key=lambda trial: -len({call.spec.name for call in trial.calls}))[:2]
    return {
        trial.script.when: trial.trajectory
        for trial in (*first, *most)
        if trial.trajectory is not None
    }


def graph_of(trials: Sequence[Trial]) -> DependencyGraph:
    """Returns the graph of who saw whom in the first of the trials in which most roles acted."""
    ended = [(trial, trial.trajectory) for trial in trials if trial.trajectory is not None]
    if not ended:
        return DependencyGraph()
    _, trajectory = max(
        ended, key=lambda pair: (len({a.role for a in pair[1].actions}), pair[0].complete)
    )
    return DependencyGraph.of(trajectory)
