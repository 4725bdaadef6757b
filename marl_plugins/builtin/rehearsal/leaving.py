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

from marl_plugins.builtin.rehearsal.scorers import (
    RUNS_PROGRAMS,
    SCORE_SECONDS,
    completed,
)
from marl_plugins.core.failures import place_of
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.scoring import answer_of, score_outcome
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.user_code_thread import (
    UserCodeTimeout,
    run_in_thread,
    run_on_a_loop,
    where_of,
)
from marl_plugins.grading.exploits import fenced, mild

IDLE = ("pass", fenced("pass"))
"""A program that does nothing: what it is paid, leaving may be paid too."""
FIX = "run the checks apart from the program, with Checker of marl_plugins.sandbox"


def paid_for_leaving(plan: Plan) -> list[Problem]:
    """Returns a warning where the recipe's grader pays a program that leaves more than one that
    does nothing."""
    run = plan.run
    function = getattr(run.grader_module, "score_outcome", None)
    complete = list(completed(run.state(RehearsalResult).trajectories).values())
    if not (callable(function) and complete) or plan.plugins.claims("marl_score_outcome", run):
        return []
    if not RUNS_PROGRAMS.search(read_text(run.folder / str(run.recipe.grader))):
        return []
    names = tuple(dict.fromkeys(re.findall(r"\b([A-Za-z_]\w*)\(", str(complete[0].task.label))))
    tried = {form(program): what for what, program in mild(names).items() for form in (str, fenced)}
    place = where_of(place_of(function))
    left: list[str] = []

    async def paid(text: str) -> float:
        """The outcome, where all roles say a text."""
        trajectory = copy.deepcopy(complete[0])
        for action in trajectory.actions:
            vars(action)["text"] = text
        trajectory.answer = text
        try:
            await score_outcome(
                trajectory, lambda t: answer_of(function, t), SCORE_SECONDS, list(run.recipe.roles)
            )
        except SystemExit:
            left.append(text)
        except Exception:  # which try_grader has named
            return 0.0
        return trajectory.outcome or 0.0

    async def all_paid(*texts: str) -> list[float]:
        return await asyncio.gather(*map(paid, texts))

    try:
        outcomes = run_in_thread(lambda caught: run_on_a_loop(all_paid(*IDLE, *tried)))
    except UserCodeTimeout:
        return []
    idle = max(outcomes[: len(IDLE)])
    better = [
        f"score_outcome pays {outcome:g} for a program that {what}, and {idle:g} for one that does "
        "nothing"
        for what, outcome in zip(tried.values(), outcomes[len(IDLE) :], strict=True)
        if outcome > idle
    ]
    if left:
        got = "score_outcome runs programs in the run's own process: one that leaves ends the run"
    elif better:
        got = better[0]
    else:
        return []
    return [Problem("rehearsal.pays_leaving", place, got, fix=FIX, severity="warning")]
