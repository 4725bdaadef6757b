"""Graders and other scorers, tried on the trajectories that the rehearsal left."""

from __future__ import annotations

import copy
import inspect
import random
import re
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from marl_plugins.builtin.rehearsal.findings import draws, swallowed
from marl_plugins.builtin.rehearsal.reached import Coverage, TracedSource
from marl_plugins.core.failures import place_of
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.run import Run
from marl_plugins.core.scoring import Seen, reward_function_score, score_outcome, score_trajectory
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.plan import apart
from marl_plugins.engine.plan.apart import (
    Capture,
    Failure,
    UserCodeTimeout,
    caught_mistakes,
    failures_kept,
    own_loop,
    run_apart,
    shared_generators,
    sort_out,
    where_of,
)
from marl_plugins.engine.plan.parts import arity_problem
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult

RUNS_PROGRAMS = re.compile(
    r"\b(?:exec|eval|compile|subprocess|Popen|runner|run_program|sandbox|Sandbox|Checker)\b"
)
"""What a grader's file names that runs programs."""
SCORE_SECONDS = 3.0
"""A score that takes longer is not waited for."""


def try_scorer(
    run: Run,
    what: str,
    score: Callable[[Trajectory], Coroutine[Any, Any, None]],
    function: Any,
    *,
    may_wait: bool = False,
) -> tuple[list[Problem], list[Problem]]:
    """Scores copies of the rehearsed trajectories; those of tasks of another kind where nothing is
    wrong with the first.

    Args:
        what: Name of the scorer, for messages.
        score: Writes scores onto a trajectory; checks them.
        function: The user's function, whose place is named where what it returned is at fault.
        may_wait: Whether a run calls it where it holds nothing up.

    Returns:
        Mistakes, and warnings.
    """
    rehearsed, where = run.state(RehearsalResult), place_of(function) or what
    source = TracedSource("", "") if function is None else TracedSource.of(function)
    remarks: dict[Problem, None] = {}
    tasks = [t.task for one in (rehearsed.trajectories, *rehearsed.others) for t in one.values()]

    def tries(
        trajectories: dict[str, Trajectory], caught: Capture
    ) -> list[tuple[str, list[Failure]]]:
        found = []
        complete = {
            k: t
            for k, t in trajectories.items()
            if not (t.agent_failure or t.infrastructure_failure)
        }
        with own_loop() as scored:
            for kind, trajectory in (
                complete or trajectories
            ).items():  # a failure is not scored like an answer
                failures, seen, first = list[Failure](), Coverage(source), copy.deepcopy(trajectory)
                before = shared_generators()
                with failures_kept(failures, where, caught), seen.watching():
                    scored(score(first))
                drew = shared_generators() != before
                random.setstate(before[0])
                found.append(
                    (kind, [replace(f, certain=f.certain or not f.raised) for f in failures])
                )
                remarks.update(
                    dict.fromkeys(
                        swallowed(caught_mistakes(seen.raised, failures, where), tasks, what)
                    )
                )
                if failures or remarks:
                    continue
                if drew:
                    remarks[draws(what, where)] = None
                elif len(found) == 1 and not RUNS_PROGRAMS.search(source.text):  # those take long
                    second = copy.deepcopy(trajectory)
                    scored(score(second))
                    remarks.update(dict.fromkeys(scored_unlike(first, second, what, where)))
        return found

    wrong, unclear = list[Problem](), list[Problem]()
    try:
        for trajectories in (rehearsed.trajectories, *rehearsed.others):
            found = run_apart(partial(tries, trajectories))
            ids = (
                []
                if trajectories is rehearsed.trajectories
                else [t.task.id for t in trajectories.values()]
            )
            wrong, unclear = sort_out(
                found, f"{what}, on task {ids[0]!r}," if ids else what, sure=rehearsed.sure
            )
            if wrong or unclear:
                break
        return wrong, [*unclear, *remarks]
    except UserCodeTimeout as stuck:
        if may_wait:
            said = f"{what} was still here after {apart.USER_CODE_SECONDS:g} s, and was not tried further"
            return [], [
                Problem("rehearsal.waits", where_of(stuck.place or where), said, severity="warning")
            ]
        return [stuck.problem(what, where)], []


def scored_unlike(first: Trajectory, second: Trajectory, what: str, where: str) -> list[Problem]:
    """Returns the warning about a scorer that gives the same trajectory other scores when it is
    asked again."""
    given = [
        [
            (f"role {role!r}", t.outcome_of(role))
            for role in dict.fromkeys(a.role for a in t.actions)
        ]
        + [(f"an action of role {a.role!r}", a.score) for a in t.actions]
        for t in (first, second)
    ]
    differ = next(
        ((who, one, two) for (who, one), (_, two) in zip(*given, strict=True) if one != two), None
    )
    if differ is None:
        return []
    who, one, two = differ
    said = f"{what} gives {who} {one}, and {two} when the same trajectory is scored again"
    fix = (
        "a run that is resumed has to repeat: draw from random.Random(task.id); use no clock, "
        "and no state of the process"
    )
    return [Problem("rehearsal.unlike", where_of(where), said, fix=fix, severity="warning")]


def try_grader(plan: Plan) -> tuple[list[Problem], list[Problem]]:
    """Tries the recipe's grader, or the function of `--reward.remote_url`, as far as no plugin
    takes its place."""
    run, module = plan.run, plan.run.grader_module
    if module is None:
        return _try_reward_function(plan)
    wrong: list[Problem] = []
    unclear: list[Problem] = []
    missing: list[bool] = []
    roles = list(run.recipe.roles)

    async def outcome(trajectory: Trajectory) -> None:
        if not trajectory.agent_failure:  # of which no grader is asked
            await score_outcome(
                trajectory, lambda t: answer_of(module.score_outcome, t), SCORE_SECONDS, roles
            )
            missing.append(trajectory.outcome is None and not trajectory.infrastructure_failure)

    async def actions(trajectory: Trajectory) -> None:
        def score(action: Action, seen: Seen) -> Coroutine[Any, Any, Any]:
            return answer_of(module.score_action, action, seen)

        await score_trajectory(trajectory, score, None, roles=roles, seconds=SCORE_SECONDS)

    for name, score, given in (
        ("score_outcome", outcome, ("trajectory",)),
        ("score_action", actions, ("action", "seen")),
    ):
        function = getattr(module, name, None)
        if not callable(function) or plan.plugins.claims(f"marl_{name}"):
            continue
        if problem := arity_problem(function, len(given)):
            wrong.append(replace(problem, fix=f"{name} is called with {' and '.join(given)}"))
            continue
        mistakes, remarks = try_scorer(run, name, score, function)
        wrong, unclear = wrong + mistakes, unclear + remarks
    if missing and all(missing):
        unclear.append(
            Problem(
                "rehearsal.no_score",
                where_of(place_of(module.score_outcome)),
                "score_outcome gave no score for any rehearsed trajectory, and what has none is "
                "not rewarded",
                fix="does it end with `return`?",
                severity="warning",
            )
        )
    complete = [
        t
        for t in run.state(RehearsalResult).trajectories.values()
        if not (t.agent_failure or t.infrastructure_failure)
    ]
    silent = (
        bool(complete)
        and all(t.answer is None for t in complete)
        and not run.state(RehearsalResult).answered
    )
    if silent and ".answer" in read_text(run.folder / str(run.recipe.grader)):
        unclear.append(
            Problem(
                "rehearsal.no_answer",
                at(file=run.folder / run.recipe.workflow),
                "run returns nothing, and the grader reads trajectory.answer",
                fix="does it end with `return`?",
                severity="warning",
            )
        )
    return wrong, unclear


def _try_reward_function(plan: Plan) -> tuple[list[Problem], list[Problem]]:
    """Try upstream's reward function, which a run calls in a thread of its own: it may wait
    there."""
    run, file = plan.run, plan.run.args.reward.remote_url
    if not file or plan.plugins.claims("marl_score_outcome"):
        return [], []
    function = load_file(Path(file)).reward_func
    roles = list(run.recipe.roles)

    async def outcome(trajectory: Trajectory) -> None:
        async def score(scored: Trajectory) -> float:
            return reward_function_score(function, scored)

        if not trajectory.agent_failure:
            await score_outcome(trajectory, score, SCORE_SECONDS, roles)

    return try_scorer(run, "reward_func", outcome, function, may_wait=True)


async def answer_of(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what a recipe's function answers, plain or async."""
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer
