"""The coach: a score from 0 to 10 for every action, while the rollout continues (MAPPA, section 3).

Three kinds: `--coach.rubric FILE`, clear rules, offline and deterministic; `--coach.model NAME`, a
language model behind any OpenAI-compatible endpoint; `--coach.policy NAME`, a policy of the run, on
the run's own engines, which is frozen or trained on how well its scores predict the outcome
(training.py). Each sees what the agent saw and did, never the label; only for the last action of
the last role does it get the label too, and with
`--coach.ground_truth none` not even there.

An unavailable verdict counts as missing: that action is not trained on, enters no statistics, and
is counted. Where more than `--coach.max_missing` of a step's verdicts are missing the whole step is
left out, and three such steps end the run.

Several of them are one coach as `coach: {members: ...}` of the recipe (ensemble.py).

`openrlhf export RUN --table NAME` has what a coach has said as data sets, and judges the recorded
actions of a run again (tables.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Generator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    ConfigurationError,
    InfrastructureFailure,
    Problem,
    Seen,
    SeenLast,
    applies_if,
    at,
    hookimpl,
)
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.bias import by_length, debias
from marl_plugins.coach.ensemble import Ensemble, weigh_by_agreement
from marl_plugins.coach.flags import NEEDED as NEEDED  # named here for `openrlhf doctor`
from marl_plugins.coach.flags import add_flags, check_flags, judging_themselves, kind_of
from marl_plugins.coach.flags import endpoint_of as endpoint_of
from marl_plugins.coach.members import (
    check_members,
    coaches_of,
    config_of,
    members_of,
    of_member,
)
from marl_plugins.coach.metrics import JudgedAction, measure, measure_members
from marl_plugins.coach.notes import NOTES, asked_of, note_of
from marl_plugins.coach.section import CoachConfig
from marl_plugins.coach.section import may_differ as may_differ
from marl_plugins.coach.stages import Stages, check_stages
from marl_plugins.coach.state import CoachState, judged_in

if TYPE_CHECKING:
    import argparse
    from types import SimpleNamespace

    from marl_plugins import Action, Finding, Policy, Run, Section, Step, StepPart, Trajectory


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"coach": CoachConfig}


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add_flags(parser)


@hookimpl
def marl_tables() -> dict[str, Any]:
    from marl_plugins.coach.tables import TABLES

    return TABLES


@hookimpl(wrapper=True)
def marl_policies(run: Run) -> Generator[None, Sequence[Policy], list[Policy]]:
    """Adds the coach's policies, which need not play a role.

    The one that the recipe names as its coach is excluded when the command line names another
    coach.
    """
    policies = list((yield))
    present = {p.name for p in policies}
    of_recipe = [run.recipe.flags.get("coach.policy")]
    of_recipe += [member.policy for member in (config_of(run).members or {}).values()]
    coaches, alone = coaches_of(run), run.args.coach.policy
    chosen = [coach.policy for coach in coaches]
    for name in dict.fromkeys(chosen):
        if name in run.recipe.policies and name not in present:
            policies.append(run.recipe_policy(name))
    every = {coach.policy: coach.train_every for coach in coaches if coach.train_every}
    policies = [replace(p, train_every=every[p.name]) if p.name in every else p for p in policies]
    kind = kind_of(run.args.coach)
    for name in dict.fromkeys(of_recipe):
        if kind and name in run.recipe.policies and name not in (*chosen, *present):
            instead = f"--coach.policy {alone}" if alone else f"--coach.{kind}"
            policies.append(replace(run.recipe_policy(str(name)), excluded_by=instead))
    return policies


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    from marl_plugins.coach.kinds import make_coach
    from marl_plugins.coach.rubric import RubricCoach, try_rubric

    problems = check_members(run) if members_of(run) else check_flags(run)
    problems += judging_themselves(run, [coach.policy for coach in coaches_of(run)])
    state = run.state(CoachState)
    state.stages = Stages(config_of(run).stages)
    run.state(Askers).most_missing = run.args.coach.max_missing
    try:
        state.coach, run.state(Askers).by_member = make_coach(run)
    except ConfigurationError as error:
        problems += error.problems
    if state.coach is None:
        return problems
    coaches = state.coach.members if isinstance(state.coach, Ensemble) else {"": state.coach}
    rubrics = {name: coach for name, coach in coaches.items() if isinstance(coach, RubricCoach)}
    by_role = [coach.rubric for coach in rubrics.values()]
    wrong = [*check_stages(state.stages.stages, by_role, len(rubrics) < len(coaches))]
    problems += wrong
    # weights of 0 may leave nothing to judge by
    for name, rubric in rubrics.items() if not wrong else ():
        place = f"coach.members.{name}" if name else f"--coach.rubric {run.args.coach.rubric}"
        problems += try_rubric(run, rubric, place)
    if len(rubrics) < len(coaches):
        from marl_plugins.coach.model import ModelCoach, without_training

        models = {name: coach for name, coach in coaches.items() if isinstance(coach, ModelCoach)}
        state.questions = next((coach.questions for coach in models.values()), None)
        if run.args.coach.memory or any(s.ask for s in state.stages.stages):
            for name, coach in models.items():
                problems += of_member(name, without_training(coach.questions.prompts))
    late = [at(flag="coach.debias")] if run.args.coach.debias else []
    late += [at(key="coach.disagreement")] if config_of(run).disagreement == "weigh" else []
    for where in late if "marl_plugins.rewards" in run.plugins else ():
        got = "changes scores after marl_plugins.rewards has made rewards of them"
        problems.append(Problem("coach.changed_late", where, got, fix="leave out one of the two"))
    return problems


@hookimpl
def marl_describe(run: Run) -> dict[str, Any] | None:
    """Describes what models that judge may use; nothing without any."""
    config = config_of(run)
    return (
        {"coach_tools": {"tools": config.tools, "max_calls": config.max_calls}}
        if config.tools
        else None
    )


@hookimpl
def marl_doctor(run: Run | None, args: SimpleNamespace, static: bool) -> list[Finding]:
    from marl_plugins.coach.doctor import check_coach

    return check_coach(run, args, static)


@hookimpl
async def marl_start(run: Run, purpose: str) -> None:
    """Opens the endpoints' files, and asks each once; an evaluation asks no coach.

    Raises:
        ConfigurationError: A file cannot be used, or an endpoint does not answer; of all endpoints
            at once.
    """
    if purpose == "evaluate":
        return
    from marl_plugins.coach.model import trial_request

    problems: list[Problem] = []
    for name, asker in run.state(Askers).by_member.items():
        try:
            asker.open(
                run.output / f"coach_spent{name and f'_{name}'}.json", run.args.ckpt.load_enable
            )
            await asker.probe(trial_request())
        except ConfigurationError as error:
            problems += of_member(name, error.problems)
    if problems:
        raise ConfigurationError(problems)


@hookimpl
async def marl_stop(run: Run) -> None:
    """Closes the connections and the files."""
    for asker in run.state(Askers).by_member.values():
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
    # Before it is asked: what a question says of the training may change meanwhile.
    asked = asked_of(action, seen, state.questions) if state.questions else {}
    try:
        verdict = await state.coach.judge(action, seen)
    except (
        InfrastructureFailure,
        asyncio.CancelledError,
    ) as failure:  # cancelled: it did not come in time
        state.verdicts[action] = JudgedAction(action, None, last)
        action.explanation = f"no verdict: {failure or 'it did not come in time'}"
        raise
    state.verdicts[action] = JudgedAction(action, verdict, last)
    action.explanation = verdict.explanation
    action.notes[NOTES] = note_of(verdict, seen) | asked
    return verdict.share


@hookimpl
def marl_credit(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    """Counts the verdicts of these trajectories."""
    state = run.state(CoachState)
    state.judged = sorted(
        [*state.judged, *judged_in(run, trajectories)],
        key=lambda judged: (judged[0].place, judged[0].sample),
    )
    state.metrics = measure(state.judged)
    return trajectories


def looks_at_whole_steps(run: Run) -> bool:
    """Returns whether something compares or counts the verdicts of a step; a rubric's alone are
    taken one by one."""
    coach = run.args.coach
    by_rubric = coach.rubric and not members_of(run)
    return not by_rubric or coach.debias or coach.max_missing < 1


@hookimpl
@applies_if(looks_at_whole_steps)
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    """Takes bias out of the scores, weighs those on which members disagree, and leaves the step
    out where too many are missing.

    Raises:
        RunPaused: The budget is spent.
    """
    state = run.state(CoachState)
    step = state.judged
    if run.args.coach.debias:
        debias(state.bias, step)
    if isinstance(state.coach, Ensemble):
        state.metrics |= measure_members(step, list(state.coach.members))
        if state.coach.config.disagreement == "weigh":
            weigh_by_agreement([judged for _, judged in step])
    actions = [judged.action for _, judged in step]
    if run.state(Askers).leave_out_if_too_many_are_missing(
        actions, [j.action for _, j in step if j.verdict is None]
    ):
        state.metrics["coach/step_left_out"] = 1.0
    return trajectories


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    """Returns what keeps the verdicts of a rollout that waits, and trains policies that judge,
    where one is trained."""
    if not any(coach.train_every for coach in coaches_of(run)):
        from marl_plugins.coach.judged import JudgedRollout

        return JudgedRollout(run.state(CoachState), step)
    from marl_plugins.coach.lessons import judge_training

    return judge_training(run, step)


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    """Logs what was judged in the step, how long it took, what it has cost so far, and the table of
    the bias monitor."""
    state = run.state(CoachState)
    metrics |= state.metrics
    for member, asker in run.state(Askers).by_member.items():
        prefix = f"coach/member/{member}" if member else "coach"
        metrics |= {f"{prefix}/{name}": value for name, value in asker.metrics().items()}
    state.bias.observe(state.judged)
    state.length_bias.observe(state.judged, by_length(state.judged))
    metrics |= {**state.bias.metrics(), **state.length_bias.metrics()}
    if state.stages.stages:
        metrics["coach/stage"] = float(state.stages.index + 1)
        state.stages.observe(int(metrics["step"]), metrics.get("outcome/mean"))
    state.metrics, state.judged = {}, []


@hookimpl
def marl_state(run: Run) -> dict[str, Any]:
    state = run.state(CoachState)
    monitors = {monitor.name: monitor.record() for monitor in (state.bias, state.length_bias)}
    return {**monitors, "stages": state.stages.record()}


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Any]) -> None:
    run.state(CoachState).bias.restore(state["bias"])
    run.state(CoachState).length_bias.restore(state["length_bias"])
    run.state(CoachState).stages.restore(state["stages"])
