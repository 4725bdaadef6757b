"""Rewards that are sums of terms, as UnityMAS-O has them (arXiv 2605.26646, eqs 9 to 12): what
`rewards:` in a recipe says.

    r_a = the sum over the terms of a's role of weight times
        outcome   the trajectory's, or the role's; `split`: over all actions that have the term
        format    0 where the answer had the form in which a graph read it, else -1
        score     the action's own, of a coach or of the grader's `score_action`
        value     V_t, the value of the round t in which a acted; `delay` 1: of the round after it,
                  0 past the last one
        gain      V_t minus the last value that there was before round t, 0 before the first

V_t is `value(action, task)` of the grader for the last action of a role of `of` in round t, asked
when a trajectory is credited, so that no workflow sees a label. A round is told by all loops and
items around it: in a loop in a map each item has rounds of its own, and in a loop in a loop the
inner rounds follow those of the outer round before. Of an action's loops the innermost counts in
which a role of `of` has acted. What is outside of all loops comes before their first round (an
answer from which later ones gain) or, where it depends on a round's answer, in a round behind the
last.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from marl_plugins import (
    Action,
    Problem,
    Run,
    Section,
    Trajectory,
    all_of,
    hookimpl,
    load_file,
)
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
    alive = [t for t in trajectories if not t.infrastructure_failure]
    values = await all_of(values_of(config.terms, trajectory, run) for trajectory in alive)
    for trajectory, by_path in zip(alive, values, strict=True):
        by_action: dict[str, list[tuple[str, float | None]]] = {
            action.path: [] for action in trajectory.actions
        }
        for term in config.terms:
            for path, amount in amounts(term, trajectory, by_path).items():
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
    for kind, amount in parts if action.reward is not None else ():
        action.add_reward(kind, amount or 0.0)


def amounts(
    term: RewardTerm, trajectory: Trajectory, values: Mapping[str, float]
) -> dict[str, float | None]:
    """Returns how much of a term each of its actions has, before its weight; None where the number
    is missing.

    Args:
        values: Of answers, by their paths.
    """
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
    valued = [(at, values[a.path]) for at, a in last_answers(term.of, trajectory)]
    return {a.path: in_round(term, place_of(a, term.of, trajectory), valued) for a in mine}


Around = Sequence[tuple[str, str, int]]
"""The rounds and items around an action, from the outermost: the address of the loop or map,
`round` or `index`, and a number."""


def around(action: Action) -> Around:
    within: Around = action.notes.get("graph", {}).get("within", ())
    return within


def in_rounds(place: Around) -> bool:
    return any(kind == "round" for _, kind, _ in place)


def place_of(action: Action, roles: Sequence[str], trajectory: Trajectory) -> Around:
    """Returns what is around an action; outside of all loops, where it depends on answers of the
    roles in rounds, also a round behind the last of these."""
    mine = around(action)
    answers = () if in_rounds(mine) else trajectory.ancestors(action.path)
    before = [around(a) for a in answers if a.role in roles and in_rounds(around(a))]
    if not before:
        return mine
    depth = next(n for n, part in enumerate(before[-1]) if part not in mine)
    node = before[-1][depth][0]
    last = max(at[depth][2] for at in before if len(at) > depth and at[depth][0] == node)
    return [*mine[:depth], (node, "round", last + 1), *mine[depth:]]


def last_answers(roles: Sequence[str], trajectory: Trajectory) -> list[tuple[Around, Action]]:
    """Returns the last action of one of the roles in each round or item, as actions are ordered."""
    last: dict[str, tuple[Around, Action]] = {}
    for action in (action for action in trajectory.actions if action.role in roles):
        place = place_of(action, roles, trajectory)
        last.pop(str(place), None)
        last[str(place)] = (place, action)
    return list(last.values())


async def values_of(
    terms: Sequence[RewardTerm], trajectory: Trajectory, run: Run
) -> dict[str, float]:
    """Returns the values of the answers that terms ask for, by their paths; each is asked once."""

    async def value_of(action: Action) -> float:
        value = run.grader_module.value(action, trajectory.task)  # type: ignore[union-attr]  # there is one: see marl_configure
        return float(await value if inspect.isawaitable(value) else value)

    answers = {a.path: a for term in terms for _, a in last_answers(term.of, trajectory)}
    return dict(zip(answers, await all_of(map(value_of, answers.values())), strict=True))


def in_round(term: RewardTerm, mine: Around, valued: Sequence[tuple[Around, float]]) -> float:
    """Returns what a term has for an action that is within `mine`: 0 where its round has no
    value."""
    seen = [(place, value) for at, value in valued if (place := rounds(mine, at)) is not None]
    own = rounds(mine, mine) or ()
    own = own[: max((len(place) for place, _ in seen), default=0)]
    if not own:  # none of its loops has a value
        return 0.0
    counts = (*own[:-1], own[-1] + term.delay)
    now = max((n for n, (place, _) in enumerate(seen) if place == counts), default=None)
    if now is None:
        return 0.0
    earlier = [
        (place, n)
        for n, (place, _) in enumerate(seen)
        if place < counts and (n < now or place != counts[: len(place)])
    ]
    before = seen[max(earlier)[1]][1] if earlier and term.kind == "gain" else 0.0
    return seen[now][1] - before


def rounds(mine: Around, other: Around) -> tuple[int, ...] | None:
    """Returns the numbers of `other`'s rounds of those loops that are around `mine` too, by which
    they are ordered in time; None where it belongs to another item of a map.

    What is in no loop is compared with the first loop around the other, as its round -1.
    """
    numbers = []
    for (node, kind, number), (its_node, _, its_number) in zip(mine, other, strict=False):
        if node != its_node:
            break
        if kind == "round":
            numbers.append(its_number)
        elif number != its_number:
            return None
    if not in_rounds(mine):
        return (next((number for _, kind, number in other if kind == "round"), -1),)
    return tuple(numbers)
