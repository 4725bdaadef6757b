"""The rehearsal: a workflow is run without any model before anything starts, and its scorers are tried on what comes of it.

    trial.py       one run of the workflow: every answer a word of its own, or every answer the number 1; tools answer nothing
    apart.py       user code in a thread that can be left behind, and what it raises
    findings.py    dependencies that are lost, labels that are shown, roles that nobody calls, loops that do not end
    scorers.py     the grader, and others that plugins bring
    examples.py    the tasks on which it is run, and the demonstrations of the first
    graph.py       who saw whom

Only what no answer changes is a mistake; what an agent might avoid, or a run might meet, is a remark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.core.workflow import Workflow
from marl_plugins.manager import Plugins
from marl_plugins.plan.parts import arity_problem, place_of
from marl_plugins.plan.plan import Plan
from marl_plugins.plan.rehearsal.apart import Caught, Stuck, run_apart, sort_out
from marl_plugins.plan.rehearsal.examples import copies_of_label, different, wrong_demonstrations
from marl_plugins.plan.rehearsal.findings import (
    idle,
    idle_followups,
    lost_dependencies,
    never_ended,
    shown_labels,
    source_of,
    uncalled,
    unended,
)
from marl_plugins.plan.rehearsal.graph import Graph
from marl_plugins.plan.rehearsal.scorers import Rehearsed, try_grader
from marl_plugins.plan.rehearsal.trial import ONES, WORDS, Answers, Trial, compared, saying, try_workflow, with_marked_label
from marl_plugins.plan.tasks import from_hub
from marl_plugins.run import Run

EXAMPLE = Task("example", "an example", "0")
"""Rehearsed where the run's own tasks are not known."""
WORKFLOW = "the workflow"
"""What is tried, in messages."""


@dataclass
class Rehearsal:
    """What a rehearsal found.

    Args:
        graph: Who saw whom.
        wrong: Mistakes that no answer would change, with file and line.
        unclear: What else is remarkable: a run might end there, or learn something else than was meant.
        trajectories: What the workflow left, by the kind of answers.
        others: The same of tasks of another kind.
        task: The first; None where it was invented.
    """

    graph: Graph = field(default_factory=Graph)
    wrong: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)
    others: list[dict[str, Trajectory]] = field(default_factory=list)
    task: Task | None = None


def check_workflow(plan: Plan, tools: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Mistakes of the run's workflow and grader that show without any model, and what else they raise, as warnings."""
    found = rehearse_plan(plan, tools or ())
    rehearsed = plan.run.state(Rehearsed)
    rehearsed.trajectories, rehearsed.others, rehearsed.sure = found.trajectories, found.others, found.task is not None
    wrong, unclear = try_grader(plan)
    return [*found.wrong, *wrong, *wrong_demonstrations(plan.run, found.task)], found.unclear + unclear


def rehearse_plan(plan: Plan, tools: Iterable[str]) -> Rehearsal:
    """Run the plan's workflow on its own tasks: the first, and some of another kind; on an invented one where they are a hub's.

    Raises:
        ConfigurationError: The tasks cannot be read.
    """
    tasks, evaluation = ([], []) if from_hub(plan.run) else (plan.tasks("train"), plan.tasks("eval"))
    kinds = different(chain(tasks[:1], evaluation, tasks[1:]))
    workflow, first = workflow_of(plan.plugins, plan.run), kinds[0] if kinds else None
    return rehearse(plan.run, workflow, first, tools, kinds[1:], copies_of_label(tasks))


def workflow_of(plugins: Plugins, run: Run) -> Workflow:
    """The run's workflow: a plugin's, or the recipe's."""
    workflow: Workflow = plugins.call_while_planning("marl_workflow", run=run)
    return workflow


def rehearse(
    run: Run,
    workflow: Workflow,
    task: Task | None,
    tools: Iterable[str] = (),
    others: Sequence[Task] = (),
    copies: Collection[str] = (),
) -> Rehearsal:
    """Run a workflow on a task without any model, with two kinds of answers.

    Args:
        task: None where the run's own are not known: nothing that is raised on an invented one is called a mistake.
        tools: Names of the tools that it may call; those of the roles are among them.
        others: Tasks of another kind, on which it is run too.
        copies: Keys of the tasks' metadata under which the label stands too.
    """
    file = place_of(workflow).removesuffix(": ") or str(run.folder / run.recipe.workflow)
    if problem := arity_problem(workflow, 3):
        return Rehearsal(wrong=[f"{problem}; run is called with task, roles and tools"], task=task)
    tried: list[list[Trial]] = []
    wrong: list[str] = []
    unclear: dict[str, str] = {}  # what several tasks show is said of the first of them
    for each in (task or EXAMPLE, *others):
        try:
            trials, labels = run_apart(partial(_trials, run, workflow, each, list(tools), copies, file))
        except Stuck as stuck:
            return Rehearsal(wrong=[stuck.problem("run", file)], task=task)
        tried.append(trials)
        what = f"the workflow, on task {each.id!r}," if each in others else WORKFLOW
        mistakes, remarks = sort_out([(t.answers.name, t.failures) for t in trials], WORKFLOW, sure=task is not None)
        wrong += [*(mistake.replace(WORKFLOW, what, 1) for mistake in mistakes), *labels]
        for remark in (*remarks, *lost_dependencies(trials[0]), *unended(trials, file)):
            unclear.setdefault(remark, remark.replace(WORKFLOW, what, 1))
        if wrong or any(trial.left_at for trial in trials):  # the others would say it again
            break
    idling: list[str] = []
    others_said = _of_other_answers(tried[0], run, workflow, task, list(tools), file) if task and not wrong else []
    mistakes, remarks = sort_out([(t.answers.name, t.failures) for t in [*tried[0], *others_said]], WORKFLOW, sure=False)
    if others_said:
        wrong += mistakes
        unclear |= {remark: remark for remark in remarks}
    unclear |= {remark: remark for remark in never_ended(tried[0], file)}
    missing = uncalled(list(chain(*tried, others_said)), run.recipe.roles) if not wrong else []
    if len(missing) == len(run.recipe.roles):
        wrong.append(f"{file}: run calls no role, whatever the answers; nothing would be trained")
    elif task is not None:  # another one may have what leads to them
        idling += [idle(role, file) for role in missing if not _reached(role, run, workflow, task, list(tools), file)]
    if not (wrong or "continues" in source_of(workflow)):  # it may do so after other answers
        idling += idle_followups(run)
    ended, *ended_others = [{t.answers.name: t.trajectory for t in trials if t.trajectory is not None} for trials in tried]
    graph = Graph.of(next(iter(ended.values()))) if ended else Graph()
    return Rehearsal(graph, wrong, [*unclear.values(), *idling], ended, ended_others, task)


def _of_other_answers(
    trials: Sequence[Trial], run: Run, workflow: Workflow, task: Task, tools: list[str], file: str
) -> list[Trial]:
    """A trial for each text that the workflow compares answers with, with what only these have raised."""
    known = {(failure.place, failure.kind) for trial in trials for failure in trial.failures}
    found = []
    for text in compared(source_of(workflow)):
        try:
            trial = run_apart(partial(try_workflow, run, workflow, task, tools, saying(text), file))
        except Stuck:  # a loop that this answer does not end, while others do
            continue
        trial.failures = [failure for failure in trial.failures if (failure.place, failure.kind) not in known]
        known |= {(failure.place, failure.kind) for failure in trial.failures if not failure.certain}
        found.append(trial)
    return found


def _reached(role: str, run: Run, workflow: Workflow, task: Task, tools: list[str], file: str) -> bool:
    """Whether a workflow calls a role that every answer names."""

    def named(caught: Caught) -> bool:
        trial = try_workflow(run, workflow, task, tools, saying(role), file, caught)
        return any(call.spec.name == role for call in trial.calls)

    try:
        return run_apart(named)
    except Stuck:
        return False


def _trials(
    run: Run, workflow: Workflow, task: Task, tools: list[str], copies: Collection[str], file: str, caught: Caught
) -> tuple[list[Trial], list[str]]:
    """A trial for each kind of answers, and where labels are shown.

    Each is given a label that can be recognised; a workflow that may need a real one is tried again with it.
    """
    trials: list[Trial] = []
    labels: list[str] = []

    def trial(task: Task, answers: Answers) -> Trial:
        return try_workflow(run, workflow, task, tools, answers, file, caught)

    marked = with_marked_label(task, copies)
    for answers in (WORDS, ONES):
        found = trial(marked, answers)
        labels += shown_labels(found)
        if marked != task and found.failed:
            found = trial(task, answers)
        if found.trajectory is not None:
            found.trajectory.task = task
        trials.append(found)
    return trials, list(dict.fromkeys(labels))
