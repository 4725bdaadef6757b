"""Steps one after the other on virtual time: what a step that does not wait for its last trajectory
gains, and its bias.

    python -m benchmarks.continuous [--steps 20] [--seeds 3]                 # three minutes
    python -m benchmarks.continuous --trace FILE [--token 0.05]              # a recorded load, of
        `openrlhf export`

The real pool, router, rollout, queue of rollouts and `marl_plugins.continuous`, on an event loop
whose clock is virtual. Engines and training are SIMULATED, with the costs of
benchmarks/scheduling.py: nothing here says how fast an engine is. One policy plays all roles; d
devices are d engines, and d training processes that share the rows. All arms have the same calls.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.scheduling import (
    ARMS,
    REFERENCE,
    Arm,
    Plan,
    Profile,
    Recorded,
    declared,
    pools_of,
    recorded,
    rollout_of,
    workflow_of,
)
from marl_plugins.continuous.flight import ContinuousPart, Flight
from marl_plugins.continuous.gate import LateGate
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.runtime.rollout import Rollout
from marl_plugins.engine.runtime.rollouts import RolloutQueue

from virtual_time import run  # isort: skip  # on the path since benchmarks.scheduling

TOKENS = 20
"""Tokens that stand for a second of an answer."""


@dataclass(frozen=True)
class Way:
    """One way to run steps.

    Args:
        queue: Rollouts that wait.
        late: Rollouts by which a task may be late; 0: a step waits for all of its own.
        ahead: Share of a step's tasks that begin early.
    """

    arm: Arm = ARMS[REFERENCE]
    queue: int = 0
    late: int = 0
    ahead: float = 0.25


WAYS = {
    "lockstep, synchronous": Way(ARMS["lockstep, synchronous"]),
    "queue, oldest task first": Way(),
    "the same, rollouts during updates": Way(queue=1),
    "continuous, a quarter ahead": Way(queue=1, late=1),
    "continuous, a half ahead": Way(queue=1, late=1, ahead=0.5),
    "continuous, a half ahead, 3 late": Way(queue=1, late=3, ahead=0.5),
}


@dataclass(frozen=True)
class Found:
    """A run: seconds of virtual time a step, share of late tasks, versions of lag, and the bias by
    the first length."""

    step: float
    late: float
    oldest: int
    first_length: float | None
    trained_length: float
    """Mean length of what was trained over that of what was sampled, over the run."""


class Run:
    """Steps of a load in one of the ways."""

    def __init__(self, profile: Profile, way: Way, plans: Sequence[Plan]):
        self.way, self.profile = way, profile
        self.plans = [
            {f"{n} {task}": calls for task, calls in plan.items()}
            for n, plan in enumerate(plans, 1)
        ]
        self.tasks = [[Task(name, "", "") for name in plan] for plan in self.plans]
        self.pools, self.flight, self.gate = pools_of(profile, way.arm), Flight(), LateGate()
        self.rollout: Rollout = rollout_of(profile, way.arm, self.pools, {})
        of_step = [workflow_of(plan, way.arm) for plan in self.plans]

        async def workflow(task: Task, roles: Any, tools: Any) -> Any:
            return await of_step[int(task.id.split()[0]) - 1](task, roles, tools)

        self.rollout.workflow = workflow
        generate = self.rollout.hook.marl_generate

        async def sized(run: Any, call: Any, engines: Any) -> Any:
            given = await self.gate.ask(generate(run=run, call=call, engines=engines))
            count = max(1, round(declared(call) * TOKENS))
            return replace(given, ids=(ord("x"),) * count, logprobs=(-0.5,) * count)

        self.rollout.hook.marl_generate = sized
        self.trained: dict[int, list[Trajectory]] = {}
        self.metrics: list[dict[str, float]] = []

    def planned(self, number: int) -> Sequence[Task]:
        return self.tasks[number - 1] if number <= len(self.tasks) else ()

    async def trajectory(self, number: int, task: Task, place: int, sample: int) -> Trajectory:
        return await self.rollout.one(task, place, sample, number, None)

    async def groups(self, number: int) -> AsyncGenerator[Sequence[Trajectory], None]:
        """What a step has, in its way."""
        way, tasks = self.way, self.planned(number)
        if not way.late:
            async for trajectory in self.rollout.train(tasks, 1, number):
                yield [trajectory]
            return

        async def begin(task: Task, place: int, sample: int) -> Trajectory:
            return await self.trajectory(number, task, place, sample)

        step: Any = SimpleNamespace(number=number, planned=self.planned, trajectory=begin)
        part = ContinuousPart(
            step, self.flight, 1, max(1, round(way.ahead * len(tasks))), way.late, way.queue
        )
        async for group in part.source():
            yield group
        self.metrics.append(dict(part.metrics()))

    async def roll_out(self, number: int) -> Any:
        return [trajectory async for group in self.groups(number) for trajectory in group]

    async def train(self, number: int, trajectories: Sequence[Trajectory]) -> None:
        self.trained[number] = list(trajectories)
        rows = sum(len(t.actions) for t in trajectories)
        await asyncio.sleep(rows * self.profile.train / self.profile.engines)

    async def whole(self) -> Found:
        queue = RolloutQueue(self.roll_out, self.way.queue, len(self.plans))
        for number in range(1, len(self.plans) + 1):
            step: Any = await queue.take(number)
            await asyncio.gather(self.train(number, step), queue.ahead(number))
            await self.gate.change(asyncio.sleep(self.profile.sync))
        return self.found(asyncio.get_running_loop().time())

    def found(self, seconds: float) -> Found:
        kept = [(number, t) for number, found in self.trained.items() for t in found]
        counted = Counter(t.task.id for _, t in kept)
        assert counted == Counter(task.id for tasks in self.tasks for task in tasks), (
            "a task was lost, or is there twice"
        )
        firsts = [
            m["role/" + r + "/first_length"]
            for m in self.metrics
            for r in self.pools
            if f"role/{r}/first_length" in m
        ]
        lengths = [len(a.generation.ids) for _, t in kept for a in t.actions]
        wanted = [
            max(1, round(s * TOKENS))
            for plan in self.plans
            for calls in plan.values()
            for _, s, _ in calls
        ]
        return Found(
            step=seconds / len(self.plans),
            late=statistics.fmean(m["continuous/late"] for m in self.metrics)
            if self.metrics
            else 0.0,
            oldest=max(number - 1 - max(0, t.step - 1 - self.way.queue) for number, t in kept),
            first_length=statistics.fmean(firsts) if firsts else None,
            trained_length=statistics.fmean(lengths) / statistics.fmean(wanted),
        )


def one_policy(plan: Plan) -> Plan:
    """A step whose calls are all of one policy."""
    return {
        task: [("p0", seconds, tools) for _, seconds, tools in calls]
        for task, calls in plan.items()
    }


def compare(load: Profile, devices: int, runs: Sequence[Sequence[Plan]]) -> None:
    """All ways, as a table."""
    profile = Profile(
        shares=(1.0,), engines=devices, places=load.places, train=load.train, sync=load.sync
    )
    found = {
        name: [run(Run(profile, way, plans).whole())[0] for plans in runs]
        for name, way in WAYS.items()
    }
    lockstep = found["lockstep, synchronous"]
    print(f"\n{devices} devices, {len(runs)} runs of {len(runs[0])} steps")
    print(
        "| way | step, s | throughput | late | oldest row, versions | length at first | trained |\n"
        + "|---" * 7
        + "|"
    )
    for name, results in found.items():
        gains = [a.step / b.step for a, b in zip(lockstep, results, strict=True)]
        firsts = [r.first_length for r in results if r.first_length is not None]
        cells = [
            f"{statistics.fmean(r.step for r in results):.0f}",
            f"{statistics.fmean(gains):.2f} ({min(gains):.2f}-{max(gains):.2f})",
            f"{statistics.fmean(r.late for r in results):.2f}",
            str(max(r.oldest for r in results)),
            f"{statistics.fmean(firsts):.2f}" if firsts else "1.00",
            f"{statistics.fmean(r.trained_length for r in results):.2f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--devices", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument(
        "--train", type=float, default=1.0, help="seconds of training a row on one device"
    )
    parser.add_argument(
        "--places", type=int, default=1, help="requests that an engine answers at a time"
    )
    parser.add_argument(
        "--trace", type=Path, help="a recorded load, of `openrlhf export RUN --table trace`"
    )
    parser.add_argument(
        "--token", type=float, default=0.05, help="seconds for a token of a recorded load"
    )
    args = parser.parse_args()
    load: Profile = recorded(args.trace, args.token, args.train) if args.trace else Profile()
    load = replace(load, train=args.train, places=args.places)
    if isinstance(load, Recorded):
        runs = [[one_policy(plan) for plan in load.steps]]
    else:
        runs = [
            [one_policy(load.plan(seed * 1000 + step)) for step in range(args.steps)]
            for seed in range(args.seeds)
        ]
    for devices in args.devices:
        compare(load, devices, runs)


if __name__ == "__main__":
    main()
