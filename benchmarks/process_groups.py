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
from typing import Any

from marl_plugins.engine.hosts import cpu

os.environ.update(cpu.environment())
os.environ["MARL_PLUGINS_DEVICE"] = "cpu"

MODELS = ("tiny", "tiny:hidden=512,layers=4,heads=4", "tiny:hidden=1024,layers=4,heads=4")
SUMS = Path(__file__).resolve().parent.parent / "tests" / "recipes" / "sums" / "tiny.yaml"
OUT, IN, LOAD = "was asked for its state", "was given its state", "was loaded"
"""What the processes say that they are doing (process_groups/room.py)."""


@contextmanager
def cluster() -> Iterator[None]:
    import ray

    from marl_plugins.engine.processes.cluster import quiet
    from marl_plugins.engine.processes.fork_server import fork_server

    env = {**quiet(False), **cpu.environment(), "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    with fork_server(debug=False) as python:
        runtime = {"env_vars": env, "py_executable": python}
        options: Any = {
            "address": "local",
            "include_dashboard": False,
            "num_gpus": 1,
            "num_cpus": 4,
            "log_to_driver": False,
        }
        ray.init(
            **options, object_store_memory=4 * 2**30, logging_level="ERROR", runtime_env=runtime
        )
        try:
            yield
        finally:
            ray.shutdown()


def row(policy: str) -> Any:
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
    trajectory.actions.append(action)
    return Row(trajectory, action, 1.0)


def policies_of(model: str, room: Any) -> list[Any]:
    """Two policies that share the seats of a room."""
    from transformers import AutoTokenizer

    from marl_plugins.core.policy import Policy
    from marl_plugins.engine.plan.build import build_plan
    from marl_plugins.engine.processes.engines import RestartBudget
    from marl_plugins.engine.runtime.policy import UpstreamPolicy
    from marl_plugins.engine.runtime.tiny_model import resolve

    run = build_plan(["--recipe", str(SUMS), "--mapping", "shared"]).run
    args, folder = run.policy_args["shared"], resolve(model)
    args.actor.model_name_or_path, args.vllm.num_engines = folder, 0
    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = [
        UpstreamPolicy(
            Policy(n, model), args, "cpu", tokenizer, 100, RestartBudget(0), 600.0, room=room
        )
        for n in "pq"
    ]
    for policy in made:
        policy.launch()
        policy.load()
    return made


def timed(processes: Any, seconds: dict[str, list[float]]) -> None:
    """Note how long each thing takes that the processes of a policy are asked for."""
    await_work = processes.await_work

    async def noting(doing: str, *work: Any) -> Any:
        started = time.perf_counter()
        try:
            return await await_work(doing, *work)
        finally:
            seconds.setdefault(doing, []).append(time.perf_counter() - started)

    processes.await_work = noting


async def take_turns(made: list[Any], turns: int) -> tuple[list[dict[str, float]], int]:
    """The seconds of every turn by what was done, and the bytes of a state."""
    import ray

    seconds: dict[str, list[float]] = {}
    for policy in made:
        timed(policy.training, seconds)
    expected, found = {}, []
    for turn in range(2 * turns):
        policy = made[turn % 2]
        seconds.clear()
        started = time.perf_counter()
        async with policy.training.active():
            whole = time.perf_counter() - started
            log_probs = (await policy.forward([row(policy.name)])).tokens.log_probs.tolist()
        assert expected.setdefault(policy.name, log_probs) == log_probs, "the policy is another one"
        found.append({"whole": whole, **{doing: sum(times) for doing, times in seconds.items()}})
        await asyncio.gather(
            *(ready for _, ready in policy.training.room._spares.values())
        )  # as after a pass of some seconds
    (state,) = made[0].training.states["policy"]
    return found, ray.get(state).nbytes


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
    parser.add_argument("--turns", type=int, default=6, help="of each policy")
    args = parser.parse_args()
    columns = (
        "model, state, out (of memcpy's speed), first out, in, first in, control (s), of it "
        "loading the model (s)"
    )
    heads = columns.split(", ")
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    with cluster():
        from marl_plugins.core.recipe import tiny
        from marl_plugins.process_groups.room import Room
        from marl_plugins.process_groups.seats import Seating

        for model in MODELS:
            room = Room(Seating(1), False, 600.0, 14.0 * tiny.parameters(model))
            room.open()
            made = policies_of(model, room)
            turns, count = asyncio.run(take_turns(made, args.turns))
            for policy in made:
                policy.kill()
            room.close()
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
