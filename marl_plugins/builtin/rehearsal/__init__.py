"""The rehearsal: a workflow is run without any model before anything starts, and its scorers are
tried on what comes of it.

    check.py       all of it, for one plan
    rehearser.py   which trials are played, and what is said of them: words, ones, examples of
                   roles, variants of the workflow, demonstrations, failures
    trial.py       one run of the workflow with a script (engine/plan/script.py)
    traced.py      which lines of the workflow's file were executed
    variants.py    what the workflow says of itself: answers, or other workflows, that are tried too
    findings.py    dependencies that are lost, labels that are shown, lines that are not reached,
                   loops that do not end, wrong names whose exception is caught
    replays.py     what differs when a task is played again: with another label, beside others at
                   the same time
    shown.py       objects that are shown as Python writes them, fields that no prompt shows
    scorers.py     the grader, and others that plugins bring
    leaving.py     programs that leave before they are checked, given to a grader that runs programs
    examples.py    the tasks on which it is run, and the demonstrations of the first

Only what no answer changes is an error; what an agent might avoid, or a run might meet, is a
warning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from marl_plugins import hookimpl

if TYPE_CHECKING:
    from marl_plugins.core.problems import Problem
    from marl_plugins.engine.plan.plan import Plan


@hookimpl
def marl_rehearse(plan: Plan) -> list[Problem]:
    from marl_plugins.builtin.rehearsal.check import check_workflow

    return check_workflow(plan)
