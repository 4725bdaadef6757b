"""Programs that leave before anything of them is checked, given to a grader that runs programs: one
that pays them is named.

A grader that appends its checks to an agent's program and looks at the exit code pays
`raise SystemExit` in full, and training finds that. Only graders whose file runs programs are
tried: what others read is no program.
"""

from __future__ import annotations

import asyncio
import copy
import re

from marl_plugins.builtin.rehearsal.scorers import RUNS_PROGRAMS, SCORE_SECONDS, answer_of
from marl_plugins.core.failures import place_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.plan.apart import UserCodeTimeout, run_apart, run_on_a_loop, where_of
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.grading.tricks import fenced, mild

IDLE = ("pass", fenced("pass"))
"""A program that does nothing: what it is paid, leaving may be paid too."""
FIX = "run the checks apart from the program, with Checker of marl_plugins.sandbox"


def paid_for_leaving(plan: Plan) -> list[Problem]:
    """Returns a warning where the recipe's grader pays a program that leaves more than one that
    does nothing."""
    run, module = plan.run, plan.run.grader_module
    function = getattr(module, "score_outcome", None)
    complete = [
        t
        for t in run.state(RehearsalResult).trajectories.values()
        if not (t.agent_failure or t.infrastructure_failure)
    ]
    if not (
        callable(function)
        and complete
        and RUNS_PROGRAMS.search(read_text(run.folder / str(run.recipe.grader)))
    ):
        return []
    if plan.plugins.claims("marl_score_outcome"):
        return []
    names = tuple(dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", str(complete[0].task.label))))
    tried = [
        (what, form(program)) for what, program in mild(names).items() for form in (str, fenced)
    ]
    place = where_of(place_of(function).removesuffix(": "))
    left: list[str] = []

    async def paid(text: str) -> dict[str, float]:
        """The outcome of each role that says a text."""
        trajectory = _saying(complete[0], text)
        try:
            await score_outcome(
                trajectory, lambda t: answer_of(function, t), SCORE_SECONDS, list(run.recipe.roles)
            )
        except SystemExit:
            left.append(text)
        except Exception:  # which try_grader has named
            return {}
        found = {
            role: trajectory.outcome_of(role)
            for role in {action.role for action in trajectory.actions}
        }
        return {role: outcome for role, outcome in found.items() if outcome is not None}

    async def all_paid() -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        found = await asyncio.gather(*(paid(text) for _, text in tried))
        some = any(outcome > 0 for one in found for outcome in one.values())
        return found, await asyncio.gather(*map(paid, IDLE)) if some else []

    try:
        found, idle = run_apart(lambda caught: run_on_a_loop(all_paid()))
    except UserCodeTimeout:
        return []
    if left:
        said = "score_outcome runs programs in the run's own process: one that leaves ends the run"
        return [Problem("rehearsal.pays_leaving", place, said, fix=FIX, severity="warning")]
    least = {
        role: max((one.get(role, 0.0) for one in idle), default=0.0)
        for one in found
        for role in one
    }
    for (what, _), one in zip(tried, found, strict=True):
        if roles := sorted(role for role, outcome in one.items() if outcome > least[role]):
            said = (
                f"score_outcome pays {one[roles[0]]:g} to role {roles[0]!r} for a program that "
                f"{what}"
            )
            said += f", and {least[roles[0]]:g} for one that does nothing"
            return [Problem("rehearsal.pays_leaving", place, said, fix=FIX, severity="warning")]
    return []


def _saying(trajectory: Trajectory, text: str) -> Trajectory:
    """A copy of a trajectory in which every action and the answer are one text."""
    said = copy.deepcopy(trajectory)
    for action in said.actions:
        vars(action)["text"] = text
    said.answer = text
    return said
