"""Does it help to choose the tasks of a step, where success is rare? recipes/swarm/tiny.yaml alone,
with a start of few successes:

    python -m benchmarks.curriculum --out FOLDER [--seeds 0 1 2 3 4] [--arms ARM ...]
        (three minutes a run on two cores)

    uniform      tasks as they come
    curriculum   drawn by their success so far (`marl_plugins.curriculum`)
    filtered     tasks whose four samples all have the same outcome are replaced by the next ones,
                 until the step is full (`--algo.dynamic_filtering_enable`)
    frozen       learning rate 0 (eight steps: nothing changes)

1,024 tasks, of which a step has 64, four samples each, in 96 steps of four optimiser steps in every
arm: each task comes six times
in `uniform`. `filtered` samples more: "samples" are the trajectories of a run.

"Steps to LEVEL" is the first evaluation (every four steps, 256 held-out tasks) from which on the
mean of three is at least that; the number of steps where there is none. Differences to `uniform`
are paired by seed, with 95 % t-intervals. Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.demo import train
from benchmarks.learning import ALONE, curve
from benchmarks.swarm import interval, recipe_of
from marl_plugins.engine.records.read import RunReader

STEPS, EVERY = 96, 4
SIZES = (
    "--rollout.batch_size",
    "64",
    "--rollout.n_samples_per_prompt",
    "4",
    "--train.batch_size",
    "64",
)
SAME = (*SIZES, "--train.num_episodes", "8", "--eval.steps", str(EVERY), "--ckpt.save_steps", "-1")
ARMS: dict[str, tuple[str, ...]] = {
    "uniform": (),
    "curriculum": ("--plugin", "marl_plugins.curriculum"),
    "filtered": ("--algo.dynamic_filtering_enable", "--algo.dynamic_filtering_range", "0", "1"),
    "frozen": ("--actor.adam.lr", "0"),
}


def run(arm: str, seed: int, out: Path) -> RunReader:
    """Return an arm's run, made where it is not there."""
    steps = 2 * EVERY if arm == "frozen" else STEPS
    recipe = recipe_of("rare 8/0", out).with_name("tiny.yaml")
    train(
        arm,
        ["--recipe", str(recipe), *ALONE, *SAME, *ARMS[arm], "--max_steps", str(steps)],
        seed,
        out,
    )
    return RunReader(out / f"{arm}-{seed}")


def steps_to(level: float, held: dict[int, float]) -> int:
    """Return the first step from which on the mean of three evaluations is at least a level; the
    last step where none is."""
    steps, values = [*held], [*held.values()]
    reached = [
        s
        for n, s in enumerate(steps)
        if len(values) >= n + 3 and statistics.fmean(values[n : n + 3]) >= level
    ]
    return reached[0] if reached else steps[-1]


def row(arm: str, seeds: Sequence[int], level: float, out: Path) -> str:
    """One arm's line of the table."""
    runs, others = (
        [run(name, seed, out) for seed in seeds]
        for name in (arm, "uniform" if arm != "frozen" else arm)
    )
    held, of_others = (
        [curve(r.folder, "eval/outcome") for r in readers] for readers in (runs, others)
    )
    samples = [sum(ledger.trajectories for ledger in r.ledgers()) for r in runs]
    flat = [
        statistics.fmean(m["signal/flat_tasks"] for m in r.metrics() if "signal/flat_tasks" in m)
        for r in runs
    ]
    start, end = (
        [statistics.fmean(list(h.values())[part]) for h in held]
        for part in (slice(0, 1), slice(-3, None))
    )
    to, of_uniform = ([float(steps_to(level, h)) for h in each] for each in (held, of_others))
    saved = interval([a - b for a, b in zip(to, of_uniform, strict=True)], "{:+.0f}")
    late = [statistics.fmean(list(h.values())[-3:]) for h in of_others]
    gain = interval([100 * (a - b) for a, b in zip(end, late, strict=True)], "{:+.1f}")
    each = ", ".join(f"{value:.2f}" for value in end)
    numbers = f"{statistics.fmean(start):.3f} | {statistics.fmean(end):.3f} ({each}) | {gain}"
    return (
        f"| {arm} | {len(seeds)} | {numbers} | {statistics.fmean(to):.0f} "
        f"({', '.join(f'{t:.0f}' for t in to)}) | {saved} | "
        f"{1 - statistics.fmean(flat):.2f} | {statistics.fmean(samples):,.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.curriculum", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-curriculum"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument(
        "--level", type=float, default=0.35, help="held-out success that is waited for"
    )
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        "| arm | seeds | held out: start | end | over uniform, points | steps to "
        f"{options.level:g} | over uniform | "
        "groups that differ | samples |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for arm in options.arms:
        print(row(arm, options.seeds, options.level, options.out), flush=True)


if __name__ == "__main__":
    main()
