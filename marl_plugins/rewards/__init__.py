"""Rewards that are sums of terms, as UnityMAS-O has them (arXiv 2605.26646, eqs 9 to 12): what
`rewards:` in a recipe says.

    r_a = the sum over the terms of a's role of weight times
        outcome   the trajectory's, or the role's; `split`: over all actions that have the term
        format    0 where the answer had the form in which a graph read it, else -1
        score     the action's own, of a coach or of the grader's `score_action`
        value     V_t, the value of the round t in which a acted; `delay` 1: of the round after it,
                  0 past the last one
        gain      V_t - V_(t-1), with 0 before the first

V_t is `value(action, task)` of the grader for the last action of a role of `of` in round t, asked
when a trajectory is credited, so that no workflow sees a label. What is outside of loops is the
round before the first: an answer from which later ones gain.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence

from marl_plugins import Action, Problem, Run, Section, Trajectory, hookimpl, load_file
from marl_plugins.rewards.section import RewardsConfig, RewardTerm, check_rewards_section


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"rewards": RewardsConfig}


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    return check_rewards_section(run)


@hookimpl
async def marl_credit(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    config = run.section(RewardsConfig) or RewardsConfig()
    others = load_file(run.folder / config.file).rewards if config.file else None
    for trajectory in (t for t in trajectories if not t.infrastructure_failure):
        by_action: dict[str, list[tuple[str, float | None]]] = {
            action.path: [] for action in trajectory.actions
        }
        for term in config.terms:
            for path, amount in (await amounts(term, trajectory, run)).items():
                by_action[path].append(
                    (term.kind, None if amount is None else term.weight * amount)
                )
        for path, parts in (others(trajectory) if others else {}).items():
            by_action[path] += parts.items()
        for action in trajectory.actions:
            write(action, by_action[action.path], config.unscored)
    return trajectories


def write(action: Action, parts: Sequence[tuple[str, float | None]], unscored: str) -> None:
    """Makes an action's reward of its parts."""
    lacks = not parts or any(amount is None for _, amount in parts)
    action.reward = None if lacks and unscored == "leave_out" else 0.0
    if action.reward is None:
        action.unscored = action.unscored or "a term of its reward has no number"
    for kind, amount in parts if action.reward is not None else ():
        action.add_reward(kind, amount or 0.0)


async def amounts(term: RewardTerm, trajectory: Trajectory, run: Run) -> dict[str, float | None]:
    """Returns how much of a term each of its actions has, before its weight; None where the number
    is missing."""
    mine = [action for action in trajectory.actions if not term.roles or action.role in term.roles]
    match term.kind:
        case "outcome":
            whole = {action.path: trajectory.outcome_of(action.role) for action in mine}
            share = len(mine) if term.share == "split" else 1
            return {
                path: None if outcome is None else outcome / share
                for path, outcome in whole.items()
            }
        case "format":
            return {
                action.path: float(action.notes.get("graph", {}).get("legal", True)) - 1
                for action in mine
            }
        case "score":
            return {action.path: action.score for action in mine}
    values = await round_values(term.of, trajectory, run)
    by_action: dict[str, float | None] = {}
    for action in mine:
        number = round_of(action) + term.delay
        before = values.get(number - 1, 0.0) if term.kind == "gain" else 0.0
        by_action[action.path] = values[number] - before if number in values else 0.0
    return by_action


def round_of(action: Action) -> int:
    """Returns the round of a graph's loop in which an action was made, from 0; -1 outside of
    loops."""
    number = action.notes.get("graph", {}).get("round")
    return -1 if number is None else int(number)


async def round_values(roles: Sequence[str], trajectory: Trajectory, run: Run) -> dict[int, float]:
    """Returns the value of each round: that of the last action of one of the roles in it."""
    last = {round_of(action): action for action in trajectory.actions if action.role in roles}
    values: dict[int, float] = {}
    for number, action in last.items():
        answer = run.grader_module.value(action, trajectory.task)  # type: ignore[union-attr]  # there is one: see marl_configure
        values[number] = float(await answer if inspect.isawaitable(answer) else answer)
    return values
