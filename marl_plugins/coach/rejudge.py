"""The recorded actions of a run, judged again with another coach: `openrlhf export RUN --table
rejudged --recipe RECIPE --coach.model NAME`.

records -> trajectories -> scored again (core/scoring.py), outcomes as recorded -> rows, or an
account by role

Nothing of the run is changed. A policy cannot be asked: no engines are started here.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from marl_plugins import (
    Action,
    ConfigurationError,
    Filter,
    Problem,
    RunReader,
    Seen,
    Trajectory,
    at,
    meant,
    score_trajectory,
)
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.corrections import about
from marl_plugins.coach.members import coaches_of
from marl_plugins.coach.metrics import JudgedAction, agreements
from marl_plugins.coach.state import judged_in

# inside: plans a run and reads its records
from marl_plugins.core.redaction import encodable
from marl_plugins.engine.records.display import Display

if TYPE_CHECKING:
    from marl_plugins import Run
    from marl_plugins.engine.plan.plan import Plan


def planned(words: Sequence[str]) -> Plan:
    """Returns the plan of a recipe with the coach that the words name.

    Raises:
        ConfigurationError: The words are wrong.
    """
    from marl_plugins.engine.plan.build import build_plan

    return build_plan([*words, "--plugin", "marl_plugins.coach"])


def read_trajectories(reader: RunReader, selection: Filter, run: Run) -> Iterator[Trajectory]:
    """Yields the recorded trajectories that are wanted and that infrastructure did not lose.

    Raises:
        ConfigurationError: A file is missing, lines cannot be read, or the recipe lacks an action's
            role.
    """
    roles = list(run.recipe.roles)
    for record in reader.recorded(selection):
        if unknown := {action.role for action in record.value.actions}.difference(roles):
            role = min(unknown)
            got, fix = f"the recipe has no role {role!r}", meant(role, roles)
            raise ConfigurationError(Problem("records.role", at(line=record.place), got, fix=fix))
        if not record.value.infrastructure_failure:
            yield record.value


class NewScores(NamedTuple):
    """The actions of a run, scored again.

    Args:
        actions: Each with its trajectory.
        recorded: The scores that they had.
        judged: The new verdicts.
    """

    actions: list[tuple[Trajectory, Action]]
    recorded: dict[Action, float | None]
    judged: list[tuple[Trajectory, JudgedAction]]


def rescored(reader: RunReader, selection: Filter, words: Sequence[str]) -> NewScores:
    """Judges every action that is wanted again."""
    with tempfile.TemporaryDirectory() as folder:  # what is spent here is not the run's account
        plan = planned([*words, "--ckpt.output_dir", folder])
        if policy := next((coach.policy for coach in coaches_of(plan.run) if coach.policy), None):
            raise ConfigurationError(
                Problem(
                    "coach.policy_without_engines",
                    at(flag="coach.policy"),
                    f"{policy}: no engines are started here",
                    fix="name a rubric (--coach.rubric FILE) or a model at an endpoint "
                    "(--coach.model NAME)",
                )
            )
        trajectories = list(read_trajectories(reader, selection, plan.run))
        actions = [(t, a) for t in trajectories for a in t.actions if selection.has_action(a)]
        recorded = {action: action.score for _, action in actions}
        asyncio.run(score_all(plan, trajectories, recorded.keys()))
    return NewScores(actions, recorded, judged_in(plan.run, trajectories))


async def score_all(
    plan: Plan, trajectories: Sequence[Trajectory], actions: Collection[Action]
) -> None:
    """Writes new scores, in as many trajectories at a time as requests may be in flight."""
    run, free = plan.run, asyncio.Semaphore(plan.run.args.coach.concurrency)

    def score(action: Action, seen: Seen) -> Awaitable[float | None] | None:
        if action not in actions:
            return None
        answer: Awaitable[float | None] | None = plan.plugins.hook.marl_score_action(
            run=run, action=action, seen=seen
        )
        return answer

    async def judge(trajectory: Trajectory) -> None:
        async with free:
            await score_trajectory(trajectory, score, None, roles=list(run.recipe.roles))
        advance()

    async with plan.plugins.started(run, "judge"):
        with Display(as_json=True).phase("judging trajectories", len(trajectories)) as advance:
            await asyncio.gather(*map(judge, trajectories))
        for name, asker in run.state(Askers).by_member.items():
            numbers = ", ".join(f"{metric} {v:g}" for metric, v in asker.metrics().items())
            print(f"coach {name}: {numbers}".replace(" :", ":"), file=sys.stderr)


def rows_of(reader: RunReader, selection: Filter, words: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields the actions with their recorded and their new scores."""
    actions, recorded, _ = rescored(reader, selection, words)
    for trajectory, action in actions:
        yield {
            "recorded": recorded[action],
            "missing": action.unscored or None,
            "explanation": encodable(action.explanation),
            **about(trajectory, action),
        }


def account_of(
    reader: RunReader, selection: Filter, words: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Compares the new scores with the recorded ones, by role.

    actions       their number
    missing       those without a new score, by reason
    recorded      mean recorded score, in [0, 1]
    score         mean new score
    spread        standard deviation of the new scores
    correlation   of the recorded and the new scores of actions that have both
    agreement     share of the new verdicts on the last action that agree with the outcome
    """
    actions, recorded, judged = rescored(reader, selection, words)
    by_role: dict[str, list[Action]] = {}
    for _, action in actions:
        by_role.setdefault(action.role, []).append(action)
    account = {}
    for role, of_role in by_role.items():
        pairs = [(recorded[a], a.score) for a in of_role]
        old = [before for before, _ in pairs if before is not None]
        new = [after for _, after in pairs if after is not None]
        both = [(b, a) for b, a in pairs if b is not None and a is not None]
        agreed = agreements([pair for pair in judged if pair[1].action.role == role])
        account[role] = {
            "actions": len(of_role),
            "missing": dict(Counter(a.unscored or "unscored" for a in of_role if a.score is None)),
            "recorded": mean(old),
            "score": mean(new),
            "spread": statistics.pstdev(new) if new else None,
            "correlation": correlation(both),
            "agreement": mean(agreed),
        }
    return account


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns Pearson's correlation; None for fewer than two pairs, or where one side does not
    vary."""
    try:
        return statistics.correlation(*zip(*pairs, strict=True)) if pairs else None
    except statistics.StatisticsError:
        return None
