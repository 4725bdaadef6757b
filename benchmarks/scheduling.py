"""How long a step takes by how its requests and updates are scheduled: many agents on few engines,
on virtual time.

    python -m benchmarks.scheduling [--seeds 20] [--train 0.15 0.25 0.4]      # a minute
    python -m benchmarks.scheduling --trace FILE [--token 0.05]               # a recorded load, of
        `openrlhf export`
    python -m benchmarks.scheduling --controller [--trajectories 10000]       # CPU time per action
        of pool, router and rollout

The real pool, router and rollout, on an event loop whose clock jumps to the next timer
(tests/virtual_time.py). Engines and training are SIMULATED, with the costs of `Profile`: nothing
here says how fast an engine is, only what order and waiting cost. All arms of a seed have the same
calls and must sample the same tokens. Of a recorded load every step is taken once, with its calls,
their policies and order, the time of their tools, and `--token` seconds for each token that was
sampled; two engines a policy. A further arm is one more entry of `ARMS`: parts of the step that
work during the rollout (`marl_step`), and what is left to train after it.

During a rollout the rows of two consecutive tasks of the step are computed once both have ended, in
the step's order, each policy by itself. What is learned from there costs 7/5 of a row's training:
the forward pass is made again, and a second backward pass keeps the gradient exact.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"

from benchmarks.load import read_trace
from marl_plugins import balance
from marl_plugins.builtin import routing
from marl_plugins.core.rows import Row, rows_to_be
from marl_plugins.core.steps import StepPart
from marl_plugins.core.trajectory import Action, Task, Trajectory
from marl_plugins.core.workflow import Call, RoleSpec, Sampling
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.runtime.roles import Cast
from marl_plugins.engine.runtime.rollout import Rollout
from marl_plugins.streaming.part import StreamingPart

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from simulated import CharacterChat
from virtual_time import SimulatedEngine, run

UNLIMITED = 10**9
Plan = dict[str, list[tuple[str, float, float]]]
"""Of each task, its calls one after the other: whose they are, how long they take, and how long
their tools after them."""


@dataclass(frozen=True)
class Profile:
    """The declared costs, in seconds."""

    tasks: int = 64
    calls: int = 6
    shares: tuple[float, ...] = (0.50, 0.26, 0.14, 0.10)
    """Of the calls, by policy."""
    mu: float = 0.3
    sigma: float = 0.9
    """Of the logarithm of an answer's seconds."""
    engines: int = 8
    places: int = 1
    """Requests that an engine answers at a time."""
    train: float = 0.25
    """Per row: two fifths before the advantages are known, three fifths after."""
    sync: float = 1.0
    seats: int = 4
    """Policies that can train at the same time."""
    reload: float = 0.5
    """Of an engine that takes over another policy's weights."""

    @property
    def policies(self) -> list[str]:
        return [f"p{n}" for n in range(len(self.shares))]

    def plan(self, seed: int) -> Plan:
        """The calls of a step."""
        draw = random.Random(seed)
        return {
            str(task): [
                (
                    draw.choices(self.policies, self.shares)[0],
                    draw.lognormvariate(self.mu, self.sigma),
                    0.0,
                )
                for _ in range(self.calls)
            ]
            for task in range(self.tasks)
        }


@dataclass(frozen=True)
class Recorded(Profile):
    """The calls of a trace instead of drawn ones; its steps take the place of seeds."""

    steps: tuple[Plan, ...] = ()

    @property
    def policies(self) -> list[str]:
        return sorted(
            {policy for plan in self.steps for calls in plan.values() for policy, _, _ in calls}
        )

    def plan(self, seed: int) -> Plan:
        return self.steps[seed]


def recorded(path: Path, token: float, train: float) -> Recorded:
    """The steps of a trace, with so many seconds for a sampled token."""
    steps: dict[int, Plan] = {}
    for action in read_trace(path):  # in the order in which they were asked for
        if action.role:
            calls = steps.setdefault(action.step, {}).setdefault(
                f"{action.task} {action.sample}", []
            )
            calls.append((action.policy, action.tokens_out * token, action.end - action.answered))
    found = Recorded(steps=tuple(steps.values()), train=train)
    return replace(found, engines=2 * len(found.policies), seats=len(found.policies))


class ByArrival(EnginePool):
    """The pool with the order of most queues."""

    def order(self, call: Call) -> Any:
        return ()


@dataclass(frozen=True)
class Arm:
    """One way to run a step.

    Args:
        in_flight: Limit per engine; without one, everything is at an engine at once and waits
            there, by arrival.
        one_at_a_time: No trajectory begins before the one before has ended.
        lockstep: Nobody makes a call before all have had their last one answered.
        changes: What it changes of the profile.
    """

    in_flight: int = UNLIMITED
    pool: type[EnginePool] = EnginePool
    one_at_a_time: bool = False
    lockstep: bool = False
    changes: tuple[tuple[str, Any], ...] = ()
    parts: Sequence[Callable[[SimulatedStep], StepPart]] = ()
    """What works during the rollout."""


class SimulatedStep:
    """A step (core/steps.py), as far as parts need it; policies are `Trained`."""

    number = 1
    estimator = SimpleNamespace(accumulators=1)

    def __init__(
        self,
        arm: Arm,
        tasks: Sequence[Task],
        pools: Mapping[str, EnginePool],
        policies: Mapping[str, Trained],
    ):
        self.tasks, self.pools, self.policies = tasks, pools, policies
        self.ended = asyncio.Event()
        self.trajectories: list[Trajectory] = []
        self.forwarded: list[Any] = []
        self.learned: set[Action] = set()
        """Actions whose gradients were taken during the rollout."""
        self.parts = [part(self) for part in arm.parts]

    async def credited(self, trajectories: Sequence[Trajectory]) -> list[Row]:
        return [row for name in self.policies for row in rows_to_be(trajectories, name)]

    async def roll_out(
        self, arriving: AsyncIterator[Trajectory], arrived: Callable[[Trajectory], None]
    ) -> None:
        """Take the trajectories while the parts work."""

        async def collect() -> None:
            async for trajectory in arriving:
                self.trajectories.append(trajectory)
                for part in self.parts:
                    part.arrived(trajectory)
                arrived(trajectory)
            self.ended.set()

        await asyncio.gather(collect(), *(part.during_rollout() for part in self.parts))


class Balance(StepPart):
    """Lets engines change policy by a rule."""

    def __init__(self, step: SimulatedStep, rule: balance.Rule):
        self.step, self.rule = step, rule

    async def during_rollout(self) -> None:
        await balance.balance(list(self.step.pools.values()), self.rule, self.step.ended)


def balanced(rule: balance.Rule) -> Callable[[SimulatedStep], StepPart]:
    return lambda step: Balance(step, rule)


class Gradients:
    """Stands for streaming's gradients: they last as long as a row's training, because a second
    backward pass keeps them exact."""

    def __init__(self, step: SimulatedStep):
        self.step = step

    def note_returns(self, rows: Sequence[Row]) -> None:
        pass

    async def add(self, rows: Sequence[Row]) -> None:
        await self.step.policies[rows[0].action.policy].train(len(rows), 1)
        self.step.learned |= {row.action for row in rows}


def streamed(tasks: int, gradients: bool = False) -> Callable[[SimulatedStep], StepPart]:
    """Forward passes during the rollout, of so many tasks at a time, and their gradients."""
    options = SimpleNamespace(
        streaming=SimpleNamespace(tasks=tasks, gradients=gradients),
        rollout=SimpleNamespace(n_samples_per_prompt=1),
    )
    run: Any = SimpleNamespace(args=options)

    def part(step: Any) -> StepPart:
        made = StreamingPart(run, step, {})
        gradients: Any = Gradients(step)
        made.gradients = gradients
        return made

    return part


ARMS = {
    "serial, colocated": Arm(one_at_a_time=True, changes=(("seats", 1),)),
    "lockstep, synchronous": Arm(lockstep=True),
    "no queue": Arm(),
    "queue by arrival": Arm(in_flight=1, pool=ByArrival),
    "queue, oldest task first": Arm(in_flight=1),
    "the same, idle engines change policy": Arm(
        in_flight=1, parts=(balanced(balance.idle_to_waiting),)
    ),
    "the same with forward passes during the rollout": Arm(
        in_flight=1, parts=(balanced(balance.idle_to_waiting), streamed(2))
    ),
    "the same with gradients during it too": Arm(
        in_flight=1, parts=(balanced(balance.idle_to_waiting), streamed(2, gradients=True))
    ),
    "engines change policy by FlexMARL's rule": Arm(
        in_flight=1, parts=(balanced(balance.shortest_to_longest(5)),)
    ),
    "gradients during the rollout, and no engine changes policy": Arm(
        in_flight=1, parts=(streamed(2, gradients=True),)
    ),
    "queue by arrival, idle engines change policy": Arm(
        in_flight=1, pool=ByArrival, parts=(balanced(balance.idle_to_waiting),)
    ),
}
REFERENCE = "queue, oldest task first"
BALANCED = "the same, idle engines change policy"
ALL = "the same with gradients during it too"


class Barrier:
    """Whoever arrives waits for all others that come to the same stage.

    Args:
        counts: How many these are.
    """

    def __init__(self, counts: Counter[int]):
        self.counts = counts
        self.arrived: Counter[int] = Counter()
        self.events: dict[int, asyncio.Event] = defaultdict(asyncio.Event)

    async def wait(self, stage: int) -> None:
        self.arrived[stage] += 1
        if self.arrived[stage] == self.counts[stage]:
            self.events[stage].set()
        await self.events[stage].wait()


def declared(call: Call) -> float:
    """How long the answer to a request takes: its prompt says so."""
    return float(bytes(call.context_ids).decode().partition(":")[2].partition(" ")[0])


def workflow_of(plan: Plan, arm: Arm) -> Any:
    gate = asyncio.Semaphore(1 if arm.one_at_a_time else len(plan))
    stages = Counter(number for calls in plan.values() for number in range(len(calls)))
    barrier = Barrier(stages)

    async def workflow(task: Task, roles: Any, tools: Any) -> Any:
        last = None
        async with gate:
            for number, (policy, seconds, tools_seconds) in enumerate(plan[task.id]):
                if arm.lockstep:
                    await barrier.wait(number)
                last = await getattr(roles, policy)(
                    q=f"{seconds!r} call {number}", after=[last] if last else []
                )
                await asyncio.sleep(tools_seconds)
        return last

    return workflow


def roles_of(profile: Profile) -> dict[str, RoleSpec]:
    chat, sampling = CharacterChat(), Sampling(1.0, 1.0, 8, 10_000)
    return {
        p: RoleSpec(p, p, lambda f: [{"role": "user", "content": f["q"]}], chat, sampling)
        for p in profile.policies
    }


def pools_of(profile: Profile, arm: Arm) -> dict[str, EnginePool]:
    def restore(policy: str) -> Any:
        return lambda handle: handle.engine.load_state(policy, 0, profile.reload)

    def engines(policy: str) -> list[Any]:
        each = profile.engines // len(profile.policies)
        return [SimulatedEngine(policy, declared, profile.places) for _ in range(each)]

    return {
        p: arm.pool(
            p,
            engines(p),
            lambda dead: dead,
            restore(p),
            RestartBudget(0),
            600.0,
            min(arm.in_flight * profile.places, UNLIMITED),
        )
        for p in profile.policies
    }


@dataclass(frozen=True)
class Result:
    """One step: seconds of virtual time."""

    step: float
    rollout: float
    busy: float
    """Share of the engines' time in which they worked."""
    half: float
    """When the first half of the tasks, in the step's order, had ended."""
    sampled: list[Any]
    during: float
    """Share of the rows that were forwarded, or learned from, during the rollout or in the way in
    which that is done."""


def rollout_of(profile: Profile, arm: Arm, pools: dict[str, EnginePool], plan: Plan) -> Rollout:
    async def outcome(trajectory: Trajectory) -> float:
        return 1.0

    hook = SimpleNamespace(
        marl_generate=lambda run, call, engines: routing.marl_generate(call=call, engines=engines),
        marl_score_action=lambda run, action, seen: None,
        marl_score_outcome=lambda run, trajectory: outcome(trajectory),
    )
    recipe = SimpleNamespace(limits=SimpleNamespace(task_seconds=None))
    stub: Any = SimpleNamespace(recipe=recipe, args=SimpleNamespace(train=SimpleNamespace(seed=0)))
    plugins: Any = SimpleNamespace(hook=hook)
    return Rollout(
        stub,
        plugins,
        workflow_of(plan, arm),
        Cast({name: [spec] for name, spec in roles_of(profile).items()}),
        {},
        pools,
    )


class Trained:
    """A policy whose forward passes and updates last as long as is declared, on one of the
    seats."""

    def __init__(self, name: str, profile: Profile, seats: asyncio.Semaphore):
        self.name, self.profile, self.seats = name, profile, seats
        self.spec = SimpleNamespace(trainable=True)
        self.args = SimpleNamespace(critic=SimpleNamespace(freezing_steps=0))

    async def forward(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Rows after two fifths of their training; the advantages of all policies are computed
        afterwards."""
        await self.train(len(rows), 2 / 5)
        return rows

    async def train(self, rows: int, part: float) -> None:
        async with self.seats:
            await asyncio.sleep(rows * self.profile.train * part)


async def one_step(profile: Profile, arm: Arm, seed: int) -> Result:
    """A step: its rollout with what works during it, then forward passes, updates and syncs, each
    policy's on one of the seats."""
    profile, now = replace(profile, **dict(arm.changes)), asyncio.get_running_loop().time
    plan, pools, seats = (
        profile.plan(seed),
        pools_of(profile, arm),
        asyncio.Semaphore(profile.seats),
    )
    rollout, tasks = rollout_of(profile, arm, pools, plan), [Task(name, "", "") for name in plan]
    policies = {name: Trained(name, profile, seats) for name in pools}
    step = SimulatedStep(arm, tasks, pools, policies)
    ends: dict[int, float] = {}

    def note_end(trajectory: Trajectory) -> None:
        ends.setdefault(trajectory.place, now())

    await step.roll_out(rollout.train(tasks, 1, 1), note_end)
    trajectories = rollout.in_order(step.trajectories)
    rows = {name: rows_to_be(trajectories, name) for name in policies}
    assert sum(map(len, rows.values())) == sum(map(len, plan.values())), "a row was lost"
    known = {row.action for forwarded in step.forwarded for row in forwarded}
    left = {name: [row for row in mine if row.action not in known] for name, mine in rows.items()}
    await asyncio.gather(
        *(policy.forward(left[name]) for name, policy in policies.items() if left[name])
    )
    late = {
        name: [row for row in mine if row.action not in step.learned] for name, mine in rows.items()
    }
    await asyncio.gather(
        *(policy.train(len(late[name]), 3 / 5) for name, policy in policies.items())
    )
    await asyncio.sleep(profile.sync)
    finished = [ends[place] for place in range(len(tasks))]
    engines: list[Any] = [engine for pool in pools.values() for engine in pool.engines]
    worked = sum(end - begun for engine in engines for _, begun, end in engine.served)
    return Result(
        step=now(),
        rollout=max(finished),
        busy=worked / (profile.engines * profile.places * max(finished)),
        half=max(finished[: len(finished) // 2]),
        sampled=[(t.task.id, [(a.path, a.generation) for a in t.actions]) for t in trajectories],
        during=len(step.learned or known) / sum(map(len, rows.values())),
    )


def compare(profile: Profile, seeds: int) -> None:
    """All arms over the same seeds, as a table."""
    found: dict[str, list[Result]] = {name: [] for name in ARMS}
    for seed in range(seeds):
        for name, arm in ARMS.items():
            found[name].append(run(one_step(profile, arm, seed))[0])
        assert all(r[-1].sampled == found[REFERENCE][-1].sampled for r in found.values()), (
            "arms sampled something else"
        )
    declared = {"of training a row": profile.train, "to change policy": profile.reload}
    print(
        f"\n{', '.join(f'{v:g} s {k}' for k, v in declared.items())}, {profile.seats} seats, "
        f"{seeds} seeds"
    )
    head = [
        "arm",
        "step, s",
        "of the queue's",
        "of all's",
        "rollout, s",
        "engines busy",
        "half of the tasks after",
        "during",
    ]
    print(f"| {' | '.join(head)} |\n{'|---' * len(head)}|")
    for name, results in found.items():
        cells = [spread([r.step for r in results])]
        for other in (REFERENCE, ALL):
            cells.append(
                spread([a.step / b.step for a, b in zip(results, found[other], strict=True)], 2)
            )
        cells += [
            spread([r.rollout for r in results]),
            f"{statistics.fmean(r.busy for r in results):.2f}",
        ]
        cells += [
            spread([r.half for r in results]),
            f"{statistics.fmean(r.during for r in results):.2f}",
        ]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Mean, minimum and maximum."""
    return (
        f"{statistics.fmean(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"
    )


def controller(trajectories: int, repeats: int = 3) -> None:
    """CPU time of the controller per action: pool, router and rollout, and the simulated
    engine's."""
    profile = Profile(engines=64, places=16, calls=2)
    at_once = [n for n in (10, 100, 1000, 10_000, 100_000) if n <= trajectories]
    print(
        "| trajectories at once | no queue, ms an action | queue | ratio | and engines that change "
        "policy | ratio |"
    )
    print("|---|---|---|---|---|---|")
    for count in at_once:
        cpu_ms: dict[str, list[float]] = {"no queue": [], REFERENCE: [], BALANCED: []}
        for _ in range(repeats):
            for name, times in cpu_ms.items():
                times.append(rolled_out(replace(profile, tasks=count), ARMS[name]))
        first = cpu_ms["no queue"]
        cells = [spread(first, 3)]
        for name in (REFERENCE, BALANCED):
            cells += [
                spread(cpu_ms[name], 3),
                spread([b / a for a, b in zip(first, cpu_ms[name], strict=True)], 2),
            ]
        print(f"| {count} | {' | '.join(cells)} |", flush=True)


def rolled_out(profile: Profile, arm: Arm) -> float:
    """Milliseconds of CPU per action of one rollout."""
    pools, plan = pools_of(profile, arm), profile.plan(0)

    async def rollout() -> float:
        work, tasks = rollout_of(profile, arm, pools, plan), [Task(name, "", "") for name in plan]
        step = SimulatedStep(arm, tasks, pools, {})
        started = time.process_time()
        await step.roll_out(work.train(tasks, 1, 1), lambda trajectory: None)
        actions = sum(len(trajectory.actions) for trajectory in step.trajectories)
        assert actions == profile.tasks * profile.calls, "an action was lost"
        return (time.process_time() - started) / actions * 1e3

    milliseconds: float = run(rollout())[0]
    return milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument(
        "--train", type=float, nargs="+", default=[0.25], help="seconds of training a row"
    )
    parser.add_argument(
        "--seats", type=int, help="policies that can train at the same time; default: all"
    )
    parser.add_argument(
        "--reload",
        type=float,
        default=0.5,
        help="seconds in which an engine changes policy; a restart takes 16",
    )
    parser.add_argument("--controller", action="store_true")
    parser.add_argument("--trajectories", type=int, default=10_000)
    parser.add_argument(
        "--trace", type=Path, help="a recorded load, of `openrlhf export RUN --table trace`"
    )
    parser.add_argument(
        "--token",
        type=float,
        default=0.05,
        help="seconds that an engine takes for a token of a recorded load",
    )
    args = parser.parse_args()
    if args.controller:
        controller(args.trajectories)
    for seconds in () if args.controller else args.train:
        load = recorded(args.trace, args.token, seconds) if args.trace else Profile(train=seconds)
        load = replace(load, seats=args.seats or load.seats, reload=args.reload)
        compare(load, len(load.steps) if isinstance(load, Recorded) else args.seeds)


if __name__ == "__main__":
    main()
