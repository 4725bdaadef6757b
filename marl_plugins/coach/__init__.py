"""The coach: a score from 0 to 10 for every action, while the rollout continues (MAPPA, section 3).

Three kinds: `--coach.rubric FILE`, clear rules, offline and deterministic; `--coach.model NAME`, a language model behind any
OpenAI-compatible endpoint; `--coach.policy NAME`, a frozen policy of the run, on the run's own engines. Each sees what the
agent saw and did, never the label; only for the last action of the last role does it get the label too, and with
`--coach.ground_truth none` not even there.

An unavailable verdict counts as missing: that action is not trained on, enters no statistics, and is counted. Where more
than `--coach.max_missing` of a step's verdicts are missing the whole step is left out, and three such steps end the run.

`openrlhf coach RUN --recipe RECIPE` judges the recorded actions of a run again (rejudge.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.coach.flags import NEEDED as NEEDED  # named here for `openrlhf doctor`
from marl_plugins.coach.flags import OF_AN_ENDPOINT, add_flags, check_flags, kind_of
from marl_plugins.coach.flags import endpoint_of as endpoint_of
from marl_plugins.coach.metrics import Judged, measure
from marl_plugins.coach.state import NOTES, CoachState, judged_in
from marl_plugins.coach.state import asker_of as asker_of
from marl_plugins.core.command import Command
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.scoring import Seen, SeenLast

if TYPE_CHECKING:
    import argparse

    from marl_plugins.core.policy import Policy
    from marl_plugins.core.trajectory import Action, Trajectory
    from marl_plugins.hookspecs import Purpose
    from marl_plugins.run import Run

may_differ = tuple(f"coach.{name}" for name in (*OF_AN_ENDPOINT, "deadline") if name not in ("form", "body"))
"""Flags that a resumed run may change freely: where a model answers, how fast, and what it may cost."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)


@hookimpl
def marl_commands() -> list[Command]:
    return [
        Command("coach", "RUN --recipe RECIPE", "judges a run's recorded actions again with another coach", _rejudge),
        Command("corrections", "RUN", "makes SFT and DPO data of the corrected actions that a run has recorded", _export),
    ]


def _rejudge(words: Sequence[str]) -> int:
    from marl_plugins.coach.rejudge import main

    return main(words)


def _export(words: Sequence[str]) -> int:
    from marl_plugins.coach.corrections import main

    return main(words)


@hookimpl(wrapper=True)
def marl_policies(run: Run) -> Generator[None, Sequence[Policy], list[Policy]]:
    """The policies with the coach's among them, which need not play a role.

    The one that the recipe names as its coach is excluded when the command line names another coach.
    """
    policies = list((yield))
    present = {p.name for p in policies}
    chosen, of_recipe = run.args.coach.policy, run.recipe.flags.get("coach.policy")
    if chosen in run.recipe.policies and chosen not in present:
        policies.append(run.recipe_policy(chosen))
    kind = kind_of(run)
    if kind and of_recipe in run.recipe.policies and of_recipe not in (chosen, *present):
        instead = f"--coach.policy {chosen}" if chosen else f"--coach.{kind}"
        policies.append(replace(run.recipe_policy(of_recipe), excluded_by=instead))
    return policies


@hookimpl
def marl_configure(run: Run) -> list[str]:
    from marl_plugins.coach.kinds import make_coach
    from marl_plugins.coach.rubric import RubricCoach, try_rubric

    problems = check_flags(run)
    state = run.state(CoachState)
    try:
        state.coach, state.asker = make_coach(run)
    except ConfigurationError as error:
        problems += [problem for problem in error.problems if problem not in problems]
    if isinstance(state.coach, RubricCoach):
        problems += try_rubric(run, state.coach)
    return problems


@hookimpl
async def marl_start(run: Run, purpose: Purpose) -> None:
    """Open the endpoint's files, and ask it once; an evaluation asks no coach.

    Raises:
        ConfigurationError: A file cannot be used, or the endpoint does not answer.
    """
    asker = asker_of(run)
    if purpose == "evaluate" or asker is None:
        return
    from marl_plugins.coach.model import trial_request

    asker.open(run.output / "coach_spent.json", run.args.ckpt.load_enable)
    await asker.probe(trial_request())


@hookimpl
async def marl_stop(run: Run) -> None:
    """Close the connections and the files."""
    asker = asker_of(run)
    if asker is not None:
        await asker.close()


@hookimpl
def marl_score_action(run: Run, action: Action, seen: Seen) -> Awaitable[float]:
    return _score(run, action, seen)


async def _score(run: Run, action: Action, seen: Seen) -> float:
    state = run.state(CoachState)
    assert state.coach is not None
    last = isinstance(seen, SeenLast)
    if last and run.args.coach.ground_truth == "none":
        seen = Seen(**{f.name: getattr(seen, f.name) for f in fields(Seen)})
    try:
        verdict = await state.coach.judge(action, seen)
    except (InfrastructureFailure, asyncio.CancelledError) as failure:  # cancelled: it did not come in time
        state.verdicts[id(action)] = Judged(action, None, last)
        action.explanation = f"no verdict: {failure or 'it did not come in time'}"
        raise
    state.verdicts[id(action)] = Judged(action, verdict, last)
    action.explanation = verdict.explanation
    if verdict.correction is not None:
        action.notes[NOTES] = {"correction": verdict.correction, "knew_the_label": isinstance(seen, SeenLast)}
    return verdict.share


@hookimpl
def marl_credit(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    """Count the step's verdicts, and leave the step out where too many are missing.

    Raises:
        RunPaused: The budget is spent.
    """
    step = judged_in(run, trajectories)
    run.state(CoachState).metrics = measure(step)
    actions = [judged.action for _, judged in step]
    leave_out_if_too_many_are_missing(run, actions, [j.action for _, j in step if j.verdict is None])
    return trajectories


def leave_out_if_too_many_are_missing(run: Run, judged: Sequence[Action], missing: Sequence[Action]) -> None:
    """Leave a whole step out where more than `--coach.max_missing` of a model's judgements are missing.

    Raises:
        RunPaused: They are missing because the budget is spent.
    """
    asker = asker_of(run)
    spent = asker.spent() if asker is not None else None
    if spent and missing:
        raise RunPaused(f"the coach's budget is spent: {spent}; raise it to continue")
    if len(missing) > run.args.coach.max_missing * len(judged):
        for action in judged:
            action.reward, action.terms, action.unscored = None, {}, action.unscored or "coach_step_left_out"
        run.state(CoachState).metrics["coach/step_left_out"] = 1.0


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    """What was judged in the step, how long it took and what it has cost so far."""
    state = run.state(CoachState)
    metrics |= state.metrics
    if state.asker is not None:
        metrics |= {f"coach/{name}": value for name, value in state.asker.metrics().items()}
    state.verdicts = {}
    state.metrics = {}
