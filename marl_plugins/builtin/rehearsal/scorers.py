"""Graders and other scorers, tried on the trajectories that the rehearsal left."""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marl_plugins.builtin.rehearsal.findings import draws, swallowed, unlike
from marl_plugins.builtin.rehearsal.traced import Trace, TracedSource
from marl_plugins.core.failures import place_of
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.run import Run
from marl_plugins.core.scoring import (
    Seen,
    answer_of,
    reward_function_score,
    score_outcome,
    score_trajectory,
)
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.plan import user_code_thread
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult, Score
from marl_plugins.engine.plan.resolve_plugins import arity_problem
from marl_plugins.engine.plan.user_code_thread import (
    Capture,
    Failure,
    UserCodeTimeout,
    caught_mistakes,
    failures_kept,
    own_loop,
    run_in_thread,
    shared_generators,
    sort_out,
    where_of,
)

RUNS_PROGRAMS = re.compile(
    r"\b(?:exec|eval|compile|subprocess|Popen|runner|run_program|sandbox|Sandbox|Checker)\b"
)
"""What a grader's file names that runs programs."""
SCORE_SECONDS = 3.0
"""A score that takes longer is not waited for."""


def try_scorer(
    run: Run, what: str, score: Score, function: Any, *, may_wait: bool = False
) -> list[Problem]:
    """Scores copies of the rehearsed trajectories; those of tasks of another kind where nothing is
    wrong with the first.

    Args:
        what: Name of the scorer, for messages.
        score: Writes scores onto a trajectory; checks them.
        function: The user's function, whose place is named where what it returned is at fault.
        may_wait: Whether a run calls it where it holds nothing up.
    """
    rehearsed, where = run.state(RehearsalResult), place_of(function) or what
    groups = [rehearsed.trajectories, *rehearsed.others]
    tasks = [trajectory.task for group in groups for trajectory in group.values()]
    source = TracedSource.of(function)
    remarks: list[Problem] = []  # beyond what it raises

    def tries(
        trajectories: Mapping[str, Trajectory], caught: Capture
    ) -> list[tuple[str, list[Failure]]]:
        """Returns what it raises, by when a trajectory came about."""
        tried = []
        with own_loop() as scored:
            for kind, trajectory in trajectories.items():
                failures, trace = list[Failure](), Trace(source)
                first = copy.deepcopy(trajectory)
                before = shared_generators()
                with failures_kept(failures, where, caught), trace.watching():
                    scored(score(first))
                drew = shared_generators() != before
                random.setstate(before[0])
                tried.append(
                    (kind, [replace(f, certain=f.certain or not f.raised) for f in failures])
                )
                mistakes = caught_mistakes(trace.raised, failures, where)
                remarks.extend(swallowed(mistakes, tasks, what))
                if failures or remarks:
                    continue
                if drew:
                    remarks.append(draws(what, where))
                elif len(tried) == 1 and not RUNS_PROGRAMS.search(source.text):
                    second = copy.deepcopy(trajectory)  # programs take long
                    scored(score(second))
                    remarks.extend(scored_unlike(first, second, what, where))
        return tried

    try:
        for group in groups:
            task = next((t.task.id for t in group.values()), "")
            on = what if group is rehearsed.trajectories else f"{what}, on task {task!r},"
            found = run_in_thread(partial(tries, completed(group) or group))
            wrong, unclear = sort_out(found, on, sure=rehearsed.sure)
            if wrong or unclear:
                break
        return [*wrong, *unclear, *dict.fromkeys(remarks)]
    except UserCodeTimeout as stuck:
        if may_wait:
            at_line = where_of(stuck.place or where)
            seconds = user_code_thread.USER_CODE_SECONDS
            got = f"{what} was still here after {seconds:g} s, and was not tried further"
            return [Problem("rehearsal.waits", at_line, got, severity="warning")]
        return [stuck.problem(what, where)]


def completed(trajectories: Mapping[str, Trajectory]) -> dict[str, Trajectory]:
    """Returns those that came to their end: a failure is not scored like an answer."""
    return {
        when: trajectory
        for when, trajectory in trajectories.items()
        if not (trajectory.agent_failure or trajectory.infrastructure_failure)
    }


def scored_unlike(first: Trajectory, second: Trajectory, what: str, where: str) -> list[Problem]:
    """Returns the warning about a scorer that gives the same trajectory other scores when it is
    asked again."""
    for one, other in zip(scores_of(first), scores_of(second), strict=True):
        if one != other:
            got = f"{what} gives {one}, and {other} when the same trajectory is scored again"
            return [unlike(got, where)]
    return []


def scores_of(trajectory: Trajectory) -> list[float | None]:
    """Returns the outcomes of its roles, and the scores of its actions."""
    roles = dict.fromkeys(action.role for action in trajectory.actions)
    actions = [action.score for action in trajectory.actions]
    return [*map(trajectory.outcome_of, roles), *actions]


def try_grader(plan: Plan) -> list[Problem]:
    """Tries the recipe's grader, or the function of `--reward.remote_url`, as far as no plugin
    takes its place."""
    run, module = plan.run, plan.run.grader_module
    if module is None:
        return _try_reward_function(plan)
    problems: list[Problem] = []
    missing: list[bool] = []
    roles, rehearsed = list(run.recipe.roles), run.state(RehearsalResult)

    async def outcome(trajectory: Trajectory) -> None:
        if not trajectory.agent_failure:  # of which no grader is asked
            await score_outcome(
                trajectory, lambda t: answer_of(module.score_outcome, t), SCORE_SECONDS, roles
            )
            rehearsed.by_role |= bool(trajectory.outcomes)
            if trajectory.answer is not None and hasattr(module, "answer_key"):
                module.answer_key(trajectory.answer)
            missing.append(trajectory.outcome is None and not trajectory.infrastructure_failure)

    async def actions(trajectory: Trajectory) -> None:
        def score(action: Action, seen: Seen) -> Coroutine[Any, Any, Any]:
            return answer_of(module.score_action, action, seen)

        await score_trajectory(trajectory, score, None, roles=roles, seconds=SCORE_SECONDS)

    for name, score, arguments in (
        ("score_outcome", outcome, ("trajectory",)),
        ("score_action", actions, ("action", "seen")),
    ):
        function = getattr(module, name, None)
        if not callable(function) or plan.plugins.claims(f"marl_{name}", run):
            continue
        if problem := arity_problem(function, len(arguments)):
            problems.append(
                replace(problem, fix=f"{name} is called with {' and '.join(arguments)}")
            )
        else:
            problems += try_scorer(run, name, score, function)
    if missing and all(missing):
        where = where_of(place_of(module.score_outcome))
        got = (
            "score_outcome gave no score for any rehearsed trajectory, and what has none is not "
            "rewarded"
        )
        problems.append(
            Problem(
                "rehearsal.no_score",
                where,
                got,
                fix="does it end with `return`?",
                severity="warning",
            )
        )
    reads_it = ".answer" in read_text(run.folder / str(run.recipe.grader))
    if reads_it and completed(rehearsed.trajectories) and not rehearsed.answered:
        where = at(file=run.folder / run.recipe.workflow)
        got = "run returns nothing, and the grader reads trajectory.answer"
        problems.append(
            Problem(
                "rehearsal.no_answer",
                where,
                got,
                fix="does it end with `return`?",
                severity="warning",
            )
        )
    return problems


def _try_reward_function(plan: Plan) -> list[Problem]:
    """Tries upstream's reward function, which a run calls in a thread of its own: it may wait
    there."""
    run, file = plan.run, plan.run.args.reward.remote_url
    if not file or plan.plugins.claims("marl_score_outcome", run):
        return []
    function = load_file(Path(file)).reward_func
    roles = list(run.recipe.roles)

    async def outcome(trajectory: Trajectory) -> None:
        async def score(scored: Trajectory) -> float:
            return reward_function_score(function, scored)

        if not trajectory.agent_failure:
            await score_outcome(trajectory, score, SCORE_SECONDS, roles)

    return try_scorer(run, "reward_func", outcome, function, may_wait=True)
