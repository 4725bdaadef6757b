"""Reading a run's folder: `python -m benchmarks.records [--megabytes 200]`

A folder with trajectories of three roles, 24 of them a step, is made of random words, ids and
log-probs. Per way of reading it: lines and megabytes per second of CPU (every line of the file
counts, wanted or not), and the most memory that the process had.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.engine.records.read import TRAJECTORIES, Filter, RunReader
from marl_plugins.engine.records.trajectory_record import to_record

ROLES, PER_STEP, TOKENS = ("solver", "coder", "verifier"), 24, 150


def made(draw: random.Random, step: int, number: int) -> Trajectory:
    """A trajectory of three actions."""

    def action(role: str) -> Action:
        ids = tuple(draw.randrange(30_000) for _ in range(TOKENS))
        logprobs = tuple(-draw.expovariate(2.0) for _ in ids)
        text = " ".join(draw.choice(("the", "sum", "of", "both", "is", "17")) for _ in ids)
        shown = tuple(draw.randrange(30_000) for _ in range(TOKENS))
        generation = Generation(ids, logprobs, "stop", role, step)
        return Action(
            f"{role}.{number}",
            role,
            role,
            0,
            shown,
            generation,
            text,
            score=0.5,
            reward=0.5,
            advantage=0.1,
        )

    trajectory = Trajectory(
        Task(f"task {number}", "a question", "17"), 0, step, seconds=draw.random()
    )
    trajectory.actions, trajectory.outcome = (
        [action(role) for role in ROLES],
        float(draw.random() < 0.5),
    )
    return trajectory


def make_run(folder: Path, megabytes: int) -> None:
    draw, step = random.Random(0), 0
    with (folder / TRAJECTORIES).open("w") as file:
        while file.tell() < megabytes * 1e6:
            step += 1
            file.writelines(
                json.dumps(to_record(made(draw, step, n))) + "\n" for n in range(PER_STEP)
            )


WAYS: dict[str, Callable[[Path], Iterable[object]]] = {
    "all trajectories": lambda run: RunReader(run).trajectories(),
    "one step of all": lambda run: RunReader(run).trajectories(Filter(steps=(100, 100))),
    "one task of 24": lambda run: RunReader(run).trajectories(Filter(task="task 7")),
    "every line parsed, for comparison": lambda run: map(
        json.loads, (run / TRAJECTORIES).open("rb")
    ),
    "every line read, for comparison": lambda run: (run / TRAJECTORIES).open("rb"),
}


def measure(folder: Path, way: str) -> None:
    """Print what one way took, in a process of its own."""
    started, found = time.process_time(), sum(1 for _ in WAYS[way](folder))
    seconds = time.process_time() - started
    print(json.dumps([found, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--way", choices=list(WAYS), help=argparse.SUPPRESS)
    parser.add_argument("--run", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.way:
        measure(options.run, options.way)
        return
    with tempfile.TemporaryDirectory() as name:
        make_run(Path(name), options.megabytes)
        file = Path(name) / TRAJECTORIES
        lines, size = sum(1 for _ in file.open("rb")), file.stat().st_size / 1e6
        print(
            f"{lines:,} lines, {size:.0f} MB\n\n| way | found | lines/s | MB/s | memory, MB "
            "|\n|---|---|---|---|---|"
        )
        for way in WAYS:
            words = [sys.executable, "-m", "benchmarks.records", "--way", way, "--run", name]
            found, seconds, memory = json.loads(
                subprocess.run(words, capture_output=True, text=True, check=True).stdout
            )
            print(
                f"| {way} | {found:,} | {lines / seconds:,.0f} | {size / seconds:,.0f} | "
                f"{memory:,.0f} |"
            )


if __name__ == "__main__":
    main()
