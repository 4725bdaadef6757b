"""All that the rehearsal of a plan tries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain

from marl_plugins.builtin.rehearsal.examples import copies_of_label, different, wrong_demonstrations
from marl_plugins.builtin.rehearsal.leaving import paid_for_leaving
from marl_plugins.builtin.rehearsal.rehearser import Rehearser
from marl_plugins.builtin.rehearsal.scorers import try_grader, try_scorer
from marl_plugins.builtin.rehearsal.trial import Stage
from marl_plugins.core.failures import place_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.resolve_plugins import arity_problem
from marl_plugins.engine.plan.tasks import known_tasks
from marl_plugins.engine.plan.user_code_thread import UserCodeTimeout
from marl_plugins.engine.plan.workflow_file import WorkflowFile, workflow_of


def check_workflow(plan: Plan) -> list[Problem]:
    """Returns the mistakes of the run's workflow and grader that show without any model, and what
    else they raise, as warnings."""
    run = plan.run
    tasks, evaluation = known_tasks(plan, "train") or [], known_tasks(plan, "eval") or []
    kinds = different(chain(tasks[:1], evaluation, tasks[1:]))
    first = kinds[0] if kinds else None
    copies = copies_of_label(tasks)
    workflow = workflow_of(plan.plugins, run)
    problems = rehearse(run, workflow, first, kinds[1:], copies, tasks)
    run.state(RehearsalResult).scorer_trial = partial(try_scorer, run)
    graded = try_grader(plan)
    right = all(problem.severity == "warning" for problem in graded)
    return [
        *problems,
        *graded,
        *wrong_demonstrations(run, first),
        *(paid_for_leaving(plan) if right else []),
    ]


def rehearse(
    run: Run,
    workflow: Workflow,
    task: Task | None,
    others: Sequence[Task] = (),
    copies: Collection[str] = (),
    more: Sequence[Task] = (),
) -> list[Problem]:
    """Runs a workflow without any model, and returns what is wrong; what comes of it is left in the
    run's `RehearsalResult`.

    Args:
        task: None where the run's own are not known: nothing that is raised on an invented one is
            called a mistake.
        others: Tasks of another kind, on which it is run too.
        copies: Keys of the tasks' metadata under which the label stands too.
        more: The run's tasks: the demonstrations of the first may lead further, and the metadata of
            all are known.
    """
    read = [*workflow.files] if isinstance(workflow, WorkflowFile) else []
    file = place_of(workflow) or str(run.folder / next(iter(read), run.recipe.workflow))
    if problem := arity_problem(workflow, 3):
        return [replace(problem, fix="run is called with task, roles and tools")]
    rehearser = Rehearser(Stage(run, workflow, file), task, copies, more)
    try:
        return rehearser.rehearse(others, run.state(RehearsalResult))
    except UserCodeTimeout as stuck:
        return [stuck.problem("run", file)]
