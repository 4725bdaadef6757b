"""What it costs that two policies take turns on one seat:
`python -m benchmarks.process_groups [--turns 6]`

Real training processes, without engines. In every turn the other policy computes the log-probs of
one row: the state of the one that computed before goes into Ray's store, its process is killed, a
spare loads the model and is given its state. Beside it, in the same run, memcpy of as many bytes
into memory that has been touched. The first turns of each policy, in which memory is touched for
the first time, are apart. The control cost is what is neither copied out nor in.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.engine.hosts import cpu

os.environ.update(cpu.environment())
os.environ[cpu.DEVICE] = "cpu"

from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.plan import Plan

if TYPE_CHECKING:
    from marl_plugins.core.rows import Row
    from marl_plugins.engine.runtime.policy import UpstreamPolicy
    from marl_plugins.process_groups.room import SeatedProcesses, SeatRoom

MODELS = ("tiny", "tiny:hidden=512,layers=4,heads=4", "tiny:hidden=1024,layers=4,heads=4")
SUMS = Path(__file__).resolve().parent.parent / "tests" / "recipes" / "sums" / "tiny.yaml"
OUT, IN, LOAD = "was asked for its state", "was given its state", "was loaded"
"""What the processes say that they are doing (process_groups/room.py)."""
POLICIES = ("solver", "coder", "verifier")
"""Of the recipe; the first two take turns."""


def plan_of(model: str) -> Plan:
    """A run whose policies share one seat, all with this model."""
    words = [
        "--recipe",
        str(SUMS),
        "--plugin",
        "marl_plugins.process_groups",
        "--process_groups.seats",
        "1",
    ]
    for policy in POLICIES:
        words += [f"--policy.{policy}.actor.model_name_or_path", model]
    return build_plan(words)


@contextmanager
def started(plan: Plan) -> Iterator[list[UpstreamPolicy]]:
    """The policies that take turns, started as a run starts them but for the engines."""
    from marl_plugins.engine.processes.cluster import ray_cluster
    from marl_plugins.engine.processes.fork_server import fork_server
    from marl_plugins.engine.runtime.session import Session

    with fork_server(debug=False) as python, ray_cluster(plan.run, False, python):
        session = Session(plan)
        for args in session.args.values():
            args.vllm.num_engines = 0
        session.start()
        try:
            yield [session.policies[name] for name in POLICIES[:2]]
        finally:
            session.kill()


def row(policy: str) -> Row:
    """A row of a policy, four sampled tokens after eight."""
    from marl_plugins.core.rows import Row
    from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory

    action = Action(
        "a",
        "solver",
        policy,
        0,
        tuple(range(3, 11)),
        Generation((3, 4, 5, 1), (-5.5,) * 4, "stop", policy, 0),
        "",
    )
    action.reward = action.returns = 1.0
    trajectory = Trajectory(Task("t", "p"), 0, step=1)
    trajectory.actions = [action]
    return Row(trajectory, action, 1.0)


def seated(policy: UpstreamPolicy) -> SeatedProcesses:
    """A policy's training processes."""
    from marl_plugins.process_groups.room import SeatedProcesses

    assert isinstance(policy.training, SeatedProcesses)
    return policy.training


def timed(processes: SeatedProcesses, seconds: dict[str, list[float]]) -> None:
    """Note how long each thing takes that the processes of a policy are asked for."""
    await_work = processes.await_work

    async def noting(doing: str, *work: Any) -> Any:
        started = time.perf_counter()
        try:
            return await await_work(doing, *work)
        finally:
            seconds.setdefault(doing, []).append(time.perf_counter() - started)

    processes.await_work = noting  # type: ignore[method-assign]


async def spares_ready(room: SeatRoom) -> None:
    """Wait for the spares, which are ready after a pass of some seconds."""
    await asyncio.gather(*(ready for spares in room._spares.values() for _, ready in spares))


async def take_turns(made: list[UpstreamPolicy], turns: int) -> tuple[list[dict[str, float]], int]:
    """The seconds of every turn by what was done, and the bytes of a state."""
    import ray

    seconds: dict[str, list[float]] = {}
    for policy in made:
        timed(seated(policy), seconds)
    expected: dict[str, list[Any]] = {}
    found = []
    for turn in range(2 * turns):
        policy = made[turn % 2]
        processes = seated(policy)
        seconds.clear()
        started = time.perf_counter()
        async with processes.active():
            whole = time.perf_counter() - started
            log_probs = (await policy.forward([row(policy.name)])).tokens.log_probs.tolist()
        assert expected.setdefault(policy.name, log_probs) == log_probs, "the policy is another one"
        found.append({"whole": whole, **{doing: sum(times) for doing, times in seconds.items()}})
        await spares_ready(processes.room)
    (state,) = seated(made[0]).states["policy"]
    return found, sum(a.nbytes for part in ray.get(state) for a in part.values())


def memcpy(count: int) -> float:
    """Seconds of copying so many bytes into memory that has been touched."""
    import numpy

    one, two = numpy.ones(count, numpy.uint8), numpy.zeros(count, numpy.uint8)
    times = []
    for _ in range(5):
        started = time.perf_counter()
        two[:] = one
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def spread(values: list[float], digits: int = 2) -> str:
    return (
        f"{statistics.median(values):.{digits}f} "
        f"({min(values):.{digits}f}-{max(values):.{digits}f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--turns", type=int, default=6, help="of each policy, three or more")
    parser.add_argument("--models", nargs="+", default=list(MODELS), help="names of random models")
    args = parser.parse_args()
    from marl_plugins.engine.processes.cluster import prepare_environment

    plans = {model: plan_of(model) for model in args.models}
    prepare_environment(plans[args.models[0]].run, debug=False)
    columns = (
        "model, state, out (of memcpy's speed), first out, in, first in, control (s), of it "
        "loading the model (s)"
    )
    heads = columns.split(", ")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for model, plan in plans.items():
        with started(plan) as made:
            turns, count = asyncio.run(take_turns(made, args.turns))
        copied = memcpy(count)
        outs, ins = (
            turns[1:],
            turns[2:],
        )  # nobody leaves in the first turn, and nobody has a state in the first two
        control = [turn["whole"] - turn[OUT] - turn[IN] for turn in ins]
        print(
            f"| {model} | {count / 1e6:.0f} MB | {spread([copied / t[OUT] for t in outs[2:]])} "
            f"| {spread([copied / t[OUT] for t in outs[:2]])} | "
            f"{spread([copied / t[IN] for t in ins[2:]])} "
            f"| {spread([copied / t[IN] for t in ins[:2]])} | {spread(control)} | "
            f"{spread([t[LOAD] for t in ins])} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
