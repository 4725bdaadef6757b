"""The rehearsal: a workflow is run without any model before anything starts, and its scorers are tried on what comes of it.

    trial.py       one run of the workflow: every answer a word of its own, or every answer the number 1; tools answer nothing
    apart.py       user code in a thread that can be left behind, and what it raises
    findings.py    dependencies that are lost, labels that are shown, roles that nobody calls, loops that do not end
    scorers.py     the grader, and others that plugins bring
    graph.py       who saw whom

Only what no answer changes is a mistake; what an agent might avoid, or a run might meet, is a remark.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.core.workflow import Workflow
from marl_plugins.manager import Plugins
from marl_plugins.plan.parts import arity_problem, place_of
from marl_plugins.plan.plan import Plan
from marl_plugins.plan.rehearsal.apart import Caught, Stuck, run_apart, sort_out
from marl_plugins.plan.rehearsal.findings import idle_roles, lost_dependencies, shown_labels, unended
from marl_plugins.plan.rehearsal.graph import Graph
from marl_plugins.plan.rehearsal.scorers import Rehearsed, try_grader
from marl_plugins.plan.rehearsal.trial import ONES, WORDS, Answers, Trial, try_workflow, with_marked_label
from marl_plugins.plan.tasks import from_hub
from marl_plugins.run import Run

EXAMPLE = Task("example", "an example", "0")
"""Rehearsed where the run's own tasks are not known."""


@dataclass
class Rehearsal:
    """What a rehearsal found.

    Args:
        graph: Who saw whom.
        wrong: Mistakes that no answer would change, with file and line.
        unclear: What else is remarkable: a run might end there, or learn something else than was meant.
        trajectories: What the workflow left, by the kind of answers.
    """

    graph: Graph = field(default_factory=Graph)
    wrong: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    trajectories: dict[str, Trajectory] = field(default_factory=dict)


def check_workflow(plan: Plan, tools: Iterable[str] | None) -> tuple[list[str], list[str]]:
    """Mistakes of the run's workflow and grader that show without any model, and what else they raise, as warnings."""
    run = plan.run
    tasks = [] if from_hub(run) else plan.tasks("train")
    found = rehearse(run, workflow_of(plan.plugins, run), tasks[0] if tasks else None, tools or ())
    rehearsed = run.state(Rehearsed)
    rehearsed.trajectories, rehearsed.sure = found.trajectories, bool(tasks)
    wrong, unclear = try_grader(plan)
    return found.wrong + wrong, found.unclear + unclear


def workflow_of(plugins: Plugins, run: Run) -> Workflow:
    """The run's workflow: a plugin's, or the recipe's."""
    workflow: Workflow = plugins.call_while_planning("marl_workflow", run=run)
    return workflow


def rehearse(run: Run, workflow: Workflow, task: Task | None, tools: Iterable[str] = ()) -> Rehearsal:
    """Run a workflow on a task without any model, with two kinds of answers.

    Args:
        task: None where the run's own are not known: nothing that is raised on an invented one is called a mistake.
        tools: Names of the tools that it may call; those of the roles are among them.
    """
    file = place_of(workflow).removesuffix(": ") or str(run.folder / run.recipe.workflow)
    if problem := arity_problem(workflow, 3):
        return Rehearsal(wrong=[f"{problem}; run is called with task, roles and tools"])
    try:
        trials, labels = run_apart(partial(_trials, run, workflow, task or EXAMPLE, list(tools), file))
    except Stuck as stuck:
        return Rehearsal(wrong=[stuck.problem("run", file)])
    wrong, unclear = sort_out([(t.answers.name, t.failures) for t in trials], "the workflow", sure=task is not None)
    idle, remarks = idle_roles(trials, run.recipe.roles, file) if not wrong else ([], [])
    unclear += [*lost_dependencies(trials[0]), *remarks, *unended(trials, file)]
    ended = {trial.answers.name: trial.trajectory for trial in trials if trial.trajectory is not None}
    graph = Graph.of(next(iter(ended.values()))) if ended else Graph()
    return Rehearsal(graph, [*wrong, *labels, *idle], unclear, ended)


def _trials(
    run: Run, workflow: Workflow, task: Task, tools: list[str], file: str, caught: Caught
) -> tuple[list[Trial], list[str]]:
    """A trial for each kind of answers, and where labels are shown.

    Each is given a label that can be recognised; a workflow that may need a real one is tried again with it.
    """
    trials: list[Trial] = []
    labels: list[str] = []

    def trial(task: Task, answers: Answers) -> Trial:
        return try_workflow(run, workflow, task, tools, answers, file, caught)

    marked = with_marked_label(task)
    for answers in (WORDS, ONES):
        found = trial(marked, answers)
        labels += shown_labels(found)
        if marked != task and found.failed:
            found = trial(task, answers)
        if found.trajectory is not None:
            found.trajectory.task = task
        trials.append(found)
    return trials, list(dict.fromkeys(labels))
