"""Long runs and wide steps without engines: does memory grow, does an action become slower?

    python -m benchmarks.endurance [--steps 2000] [--trajectories 10000]

The real trainer, rollout, credit, records and display; engines and policies are simulated
(`tests/simulated_run.py`), so that all time and memory is ours. Memory is the resident set of this
process. Its slope is fitted to the means of blocks of a twentieth of the run, without the first
quarter, and has a 95 % t-interval over the blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from marl_plugins.core.trajectory import Task
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.records.intervals import t_quantile

os.environ |= {cpu.DEVICE: "cpu", **cpu.environment()}  # before anything of upstream is imported
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from simulated_run import simulated_trainer

ACTIONS = 5
BLOCKS = 20


async def chain(task: Task, roles: Any, tools: Any) -> Any:
    """Five actions, each shown the one before."""
    text: Any = task.prompt
    for _ in range(ACTIONS):
        text = await roles.a(q=text)
    return text


def resident() -> float:
    """This process's resident set, MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def slope(memory: list[float], steps: int) -> tuple[float, float]:
    """MB per 1,000 steps and half of the 95 % interval: least squares over the means of blocks,
    without the first quarter."""
    size = len(memory) // BLOCKS
    means = [statistics.fmean(memory[n * size : (n + 1) * size]) for n in range(BLOCKS)][
        BLOCKS // 4 :
    ]
    places = [(n + 0.5) * steps / BLOCKS / 1000 for n in range(BLOCKS)][BLOCKS // 4 :]
    fit = statistics.linear_regression(places, means)
    centre = statistics.fmean(places)
    left = sum((y - fit.intercept - fit.slope * x) ** 2 for x, y in zip(places, means, strict=True))
    error = math.sqrt(left / (len(places) - 2) / sum((x - centre) ** 2 for x in places))
    return fit.slope, t_quantile(len(places) - 2) * error


def observed(trainer: Any) -> tuple[list[float], list[float]]:
    """Memory after each step, and seconds of each step, which fill while the trainer works."""
    memory: list[float] = []
    seconds: list[float] = []
    last = time.perf_counter()

    def after(run: object, step: int, metrics: dict[str, float]) -> None:
        nonlocal last
        now = time.perf_counter()
        seconds.append(now - last)
        last = now
        for policy in trainer.session.trained.values():
            policy.computed.clear()  # the stand-in's own log
        memory.append(resident())

    trainer.plugins.hook.marl_log = after
    return memory, seconds


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Sends what is printed within it nowhere."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        yield


def long(steps: int) -> None:
    """Many steps of 16 trajectories."""
    with tempfile.TemporaryDirectory() as folder, silence():
        trainer = simulated_trainer(
            Path(folder),
            lambda t: 1.0,
            steps=steps,
            eval_steps=-1,
            samples=2,
            tasks=8,
            workflow=chain,
        )
        memory, seconds = observed(trainer)
        asyncio.run(trainer.fit(0))
    actions = 16 * ACTIONS
    tenth = steps // 10
    by_tenth = [
        statistics.median(seconds[n * tenth : (n + 1) * tenth]) / actions * 1e6 for n in range(10)
    ]
    growth, half = slope(memory, steps)
    print(
        f"{steps} steps of 16 x {ACTIONS} actions: {memory[steps // 4]:.0f} MB after a quarter, "
        f"{memory[-1]:.0f} at the end"
    )
    print(f"  slope {growth:+.2f} [{growth - half:+.2f}, {growth + half:+.2f}] MB per 1,000 steps")
    print(
        f"  an action, by tenths of the run: {' '.join(f'{us:.0f}' for us in by_tenth)} us",
        flush=True,
    )


def wide(trajectories: int) -> None:
    """Few steps of many trajectories at once."""
    for at_once in (trajectories // 100, trajectories // 10, trajectories):
        gc.collect()
        with tempfile.TemporaryDirectory() as folder, silence():
            trainer = simulated_trainer(
                Path(folder),
                lambda t: 1.0,
                steps=3,
                eval_steps=-1,
                samples=1,
                tasks=at_once,
                workflow=chain,
            )
            before = resident()
            memory, seconds = observed(trainer)
            asyncio.run(trainer.fit(0))
        each = [s / at_once / ACTIONS * 1e6 for s in seconds]
        print(
            f"{at_once} x {ACTIONS} actions at once: {statistics.median(each):.0f} us an action "
            f"({min(each):.0f}-{max(each):.0f}), "
            f"memory +{max(memory) - before:.0f} MB",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trajectories", type=int, default=10_000)
    args = parser.parse_args()
    long(args.steps)  # first: in what a wide step has freed, growth would not be seen
    wide(args.trajectories)


if __name__ == "__main__":
    main()
