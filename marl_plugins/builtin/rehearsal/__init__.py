"""The rehearsal: a workflow is run without any model before anything starts, and its scorers are
tried on what comes of it.

    rehearser.py   which trials are played, and what is said of them
    script.py      what every role says and every tool answers in one run: first a word of its own
                   each, then the number 1
    trial.py       one run of the workflow with a script
    search.py      more scripts, until every line, branch and role is reached; each changes one that
                   has led somewhere
    candidates.py  what a speaker may say: what the workflow's code looks for (vocabulary.py,
                   patterns.py), or was seen to look for (noted.py), what the recipe's
                   demonstrations say, names of roles and tools; bare, as JSON, in tags, ...
    variants.py    what the workflow says of itself: answers, or other workflows, that are tried too
    reached.py     which lines of the workflow's file were executed
    apart.py       user code in a thread that can be left behind, and what it raises
    findings.py    dependencies that are lost, labels that are shown, lines that are not reached,
                   loops that do not end, wrong names whose exception is caught
    replays.py     what differs when a task is played again: as it was, with another label, beside
                   others at the same time
    shown.py       objects that are shown as Python writes them, fields that no prompt shows, texts
                   without their `f`
    scorers.py     the grader, and others that plugins bring
    misspelt.py    functions that nobody calls, and whose name is nearly one that is looked up
    leaving.py     programs that leave before they are checked, given to a grader that runs programs
    examples.py    the tasks on which it is run, and the demonstrations of the first
    graph.py       who saw whom

Only what no answer changes is an error; what an agent might avoid, or a run might meet, is a
warning.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from marl_plugins.builtin.rehearsal.examples import copies_of_label, different, wrong_demonstrations
from marl_plugins.builtin.rehearsal.leaving import paid_for_leaving
from marl_plugins.builtin.rehearsal.misspelt import misspelt
from marl_plugins.builtin.rehearsal.rehearser import Rehearsal, Rehearser
from marl_plugins.builtin.rehearsal.scorers import try_grader
from marl_plugins.builtin.rehearsal.trial import Stage
from marl_plugins.core.failures import place_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.parts import arity_problem
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.tasks import from_hub
from marl_plugins.engine.plan.workflow_file import WorkflowFile, workflow_of

Tools = Mapping[str, Tool | None] | Iterable[str]
"""The tools that a workflow may call; those of which only the name is known answer to any
function."""


def check_workflow(plan: Plan, tools: Tools | None) -> tuple[list[Problem], list[Problem]]:
    """Returns the mistakes of the run's workflow and grader that show without any model, and what
    else they raise, as warnings."""
    found = rehearse_plan(plan, tools or ())
    rehearsed = plan.run.state(RehearsalResult)
    rehearsed.trajectories, rehearsed.others, rehearsed.sure = (
        found.trajectories,
        found.others,
        found.task is not None,
    )
    rehearsed.answered = any(
        t.trajectory is not None and t.trajectory.answer is not None for t in found.trials
    )
    wrong, unclear = try_grader(plan)
    unclear += misspelt(plan.run) + ([] if wrong else paid_for_leaving(plan))
    return [
        *found.wrong,
        *wrong,
        *wrong_demonstrations(plan.run, found.task),
    ], found.unclear + unclear


def rehearse_plan(plan: Plan, tools: Tools) -> Rehearsal:
    """Runs the plan's workflow on its own tasks: the first, and some of another kind; on an
    invented one where they are a hub's.

    Raises:
        ConfigurationError: The tasks cannot be read.
    """
    tasks, evaluation = (
        ([], []) if from_hub(plan.run) else (plan.tasks("train"), plan.tasks("eval"))
    )
    kinds = different(chain(tasks[:1], evaluation, tasks[1:]))
    workflow, first = workflow_of(plan.plugins, plan.run), kinds[0] if kinds else None
    return rehearse(plan.run, workflow, first, tools, kinds[1:], copies_of_label(tasks), tasks)


def rehearse(
    run: Run,
    workflow: Workflow,
    task: Task | None,
    tools: Tools = (),
    others: Sequence[Task] = (),
    copies: Collection[str] = (),
    more: Sequence[Task] = (),
) -> Rehearsal:
    """Runs a workflow without any model: on a task with words, ones, its variants and what a search
    finds; on others likewise.

    Args:
        task: None where the run's own are not known: nothing that is raised on an invented one is
            called a mistake.
        tools: Those of the roles are among them.
        others: Tasks of another kind, on which it is run too.
        copies: Keys of the tasks' metadata under which the label stands too.
        more: The run's tasks: the demonstrations of the first may lead further, and the metadata of
            all are known.
    """
    read = [*workflow.files] if isinstance(workflow, WorkflowFile) else []
    file = place_of(workflow) or str(run.folder / next(iter(read), run.recipe.workflow))
    if problem := arity_problem(workflow, 3):
        return Rehearsal(
            wrong=[replace(problem, fix="run is called with task, roles and tools")], task=task
        )
    known = dict(tools) if isinstance(tools, Mapping) else dict.fromkeys(tools)
    return Rehearser(Stage(run, workflow, known, file), task, copies, more).rehearse(others)
