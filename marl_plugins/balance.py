"""Engines that change policy during a rollout: those with nothing to do go where requests wait.

    idle    an engine with nothing to do, and nothing waiting in its pool, goes at once where more
            than one request waits. Default.
    queues  FlexMARL's rule (arXiv 2602.09578): where the longest queue is more than `--balance.gap`
            requests longer than the shortest, as many of the latter's engines go as it has requests
            more, idle ones first, busy ones as soon as they have answered.

Every policy keeps at least one engine. An engine takes over the weights of the policy that it goes
to, and only where it was started exactly like that one's own (engine/plan/signature.py): so an
answer does not depend on who has given it. All are home again when the rollout has ended, so that
nothing else of a step meets an engine that is away. Only policies that are trained take part: the
weights of the others are nowhere but in their engines.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Iterable, Sequence

from marl_plugins import (
    Engine,
    Engines,
    Problem,
    Run,
    Step,
    StepPart,
    at,
    at_least,
    engine_differences,
    hookimpl,
)

Move = tuple["Engine", "Engines", "Engines"]
"""An engine, where it is, and where it goes."""
Rule = Callable[[Sequence["Engines"]], "Move | None"]


class EngineGroups(list[list[str]]):
    """Policies between which engines may go, by name."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("engines that change policy (--plugin marl_plugins.balance)")
    group.add_argument(
        "--balance.rule",
        choices=["idle", "queues"],
        default="idle",
        help="who goes where: an idle engine to waiting requests, or engines of the shortest queue "
        "to the longest",
    )
    group.add_argument(
        "--balance.gap",
        type=at_least(0),
        default=5,
        help="with --balance.rule queues: an engine moves if the longest queue has more requests "
        "than the shortest by more than this",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    trained = with_engines(run)
    who, leave_out = at(plugin="marl_plugins.balance"), "leave out the plugin"
    if run.is_partial:
        got = (
            "an engine that pauses for new weights in the middle of answers cannot change its "
            "policy meanwhile"
        )
        flags = ("train.partial_rollout_enable",)
        return [
            Problem(
                "balance.partial",
                who,
                got,
                fix=f"leave out --{flags[0]}, or {leave_out}",
                flags=flags,
            )
        ]
    if len(trained) < 2:
        got = (
            f"engines go from one trained policy to another, and {len(trained)} of "
            f"{len(run.policies)} are trained"
        )
        return [
            Problem(
                "balance.one_policy", who, got, fix=f"give the roles more policies, or {leave_out}"
            )
        ]
    groups = run.state(EngineGroups)
    groups[:] = exchanging(run)
    if not groups:
        differing = {
            name: engine_differences(run.policy_args[trained[0]], run.policy_args[name])
            for name in trained[1:]
        }
        return [
            Problem(
                "balance.unlike",
                who + at(policy=(trained[0], name)),
                "no two trained policies have engines that are started alike; these two differ in "
                f"{', '.join(parts)}",
                fix=f"give them equal models and flags, or {leave_out}",
            )
            for name, parts in differing.items()
        ]
    return [problem.as_warning() for problem in _idle(run, groups)]


def _idle(run: Run, groups: Sequence[Sequence[str]]) -> list[Problem]:
    """Returns what keeps engines from moving."""
    who, in_flight = at(plugin="marl_plugins.balance"), run.args.balance.in_flight
    engines = [run.policy_args[name].vllm.num_engines for group in groups for name in group]
    problems = []
    if max(engines) == 1:
        got = (
            "every policy has one engine (--vllm.num_engines) and keeps at least one: none will "
            "ever move"
        )
        problems.append(Problem("balance.one_engine", who, got, flags=("vllm.num_engines",)))
    if run.trajectories <= in_flight * min(engines):
        got = (
            f"a step has {run.trajectories} trajectories, and {min(engines)} engines of a policy "
            f"take {in_flight} requests each, so hardly any will wait and no engine will move"
        )
        fix = "lower --balance.in_flight to what an engine computes at a time"
        problems.append(
            Problem("balance.in_flight", who, got, fix=fix, flags=("balance.in_flight",))
        )
    return problems


def exchanging(run: Run) -> list[list[str]]:
    """Returns the names of trained policies whose engines were started alike, two or more each."""
    groups: list[list[str]] = []
    args = run.policy_args
    for name in with_engines(run):
        for group in groups:
            if not engine_differences(args[group[0]], args[name]):
                group.append(name)
                break
        else:
            groups.append([name])
    return [group for group in groups if len(group) > 1]


def with_engines(run: Run) -> list[str]:
    """Returns the trained policies with engines of their own: adapters of one model are answered by
    the same."""
    trained = [policy.name for policy in run.policies if policy.trainable]
    processes = run.processes
    return [name for name in trained if not processes or processes.engines_of(run, name) == name]


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    return BalancePart(run, step)


class BalancePart(StepPart):
    """Moves engines while the rollout runs."""

    def __init__(self, run: Run, step: Step):
        self.run, self.step = run, step
        self.moves = 0
        """Without the ways home."""

    async def during_rollout(self) -> None:
        flags = self.run.args.balance
        rule: Rule = idle_to_waiting if flags.rule == "idle" else shortest_to_longest(flags.gap)
        groups = [
            [self.step.pools[name] for name in group] for group in self.run.state(EngineGroups)
        ]
        self.moves = sum(
            await asyncio.gather(*(balance(pools, rule, self.step.ended) for pools in groups))
        )

    def metrics(self) -> dict[str, float]:
        return {"engines/moves": float(self.moves)}


def idle_to_waiting(pools: Sequence[Engines]) -> Move | None:
    """Returns the default rule's next move. Requests for which an engine is already on its way do
    not count as waiting."""
    wanting = max(pools, key=_unserved)
    if _unserved(wanting) <= 1:
        return None
    for pool in pools:
        if not pool.waiting and len(pool.engines) > 1:
            for engine in pool.engines:
                if not engine.load:
                    return engine, pool, wanting
    return None


def _unserved(pool: Engines) -> int:
    return pool.waiting - len(pool.travelling) * pool.in_flight


def shortest_to_longest(gap: int) -> Rule:
    """Returns the next move of FlexMARL's rule (section 5.2): min(q_high - q_low, n_low - 1)
    engines go, those on their way included; of equally short queues that with the most engines
    gives them."""

    def rule(pools: Sequence[Engines]) -> Move | None:
        longest = max(pools, key=lambda pool: pool.waiting)
        shortest = min(pools, key=lambda pool: (pool.waiting, -len(pool.engines)))
        more = longest.waiting - shortest.waiting
        if more <= max(gap, len(longest.travelling)) or len(shortest.engines) < 2:
            return None
        return min(shortest.engines, key=lambda engine: engine.load), shortest, longest

    return rule


async def balance(pools: Sequence[Engines], rule: Rule, ended: asyncio.Event) -> int:
    """Moves engines until a rollout has ended, brings all of them home, and returns the number of
    moves by the rule."""
    changed, count = asyncio.Event(), 0
    moving: set[asyncio.Task[None]] = set()
    over = asyncio.ensure_future(ended.wait())
    over.add_done_callback(lambda _: changed.set())
    for pool in pools:
        pool.watchers.append(changed.set)
    try:
        while not over.done():
            changed.clear()
            while move := rule(pools):
                engine, giver, taker = move
                moving.add(giver.lend(engine, taker))
                count += 1
            await changed.wait()
            moving -= _arrived(moving)
    finally:
        over.cancel()
        for pool in pools:
            pool.watchers.remove(changed.set)
    await asyncio.gather(*moving)
    guests = [
        (engine, pool)
        for pool in pools
        for engine in pool.engines
        if engine.home not in (None, pool)
    ]
    await asyncio.gather(*(pool.lend(engine, engine.home) for engine, pool in guests))
    return count


def _arrived(moving: Iterable[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Returns the tasks that have come to an end; what one has raised is raised."""
    done = {task for task in moving if task.done()}
    for task in done:
        task.result()
    return done
