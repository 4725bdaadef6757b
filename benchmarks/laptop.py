"""What a language model of 135 M parameters learns on a laptop, beside its controls:

    OMP_NUM_THREADS=2 python -m benchmarks.laptop learn [SYSTEM ...] --out FOLDER
        [--seeds 0 1 2] [--arms full outcome frozen] [--steps 40] [--minutes 55] [--recorded]
    OMP_NUM_THREADS=2 python -m benchmarks.laptop time [SYSTEM] --out FOLDER [--steps 3]
    python -m benchmarks.laptop said FOLDER/RUN

SYSTEM: `mathchat` (recipes/mathchat/laptop.yaml) or `mails` (recipes/mails).

learn   full      each role is paid for its own part
        outcome   both are paid for what is right as a whole, and for nothing else
        frozen    learning rate 0: three evaluations of the same weights
        Success on held-out tasks (`eval/part/right`), sampled as in training: "before" is step 0,
        "halfway" the evaluation in the middle, "after" that of the last step. Gains in points with
        95 % t-intervals over seeds; and of full over outcome, seed by seed. Runs are made in pieces
        of 20 steps, seed by seed. After --minutes no piece is begun (exit code 3); the same command
        goes on.
time    Where a step's time goes, beside what two matrices of float32 take: rollout, forward passes
        and update, in seconds (medians of the steps after the first); tokens through the model;
        and what they would take at the speed of a product, 2 operations for each parameter and
        token forward, and 4 more backward (2 where the base's own gradients are not wanted).
said    What each role said on the first held-out tasks, before and after.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.demo import points, watched
from benchmarks.recorded import add_flag, restore
from marl_plugins.engine.records.read import Filter, RunReader

SYSTEMS = {
    "mathchat": ("mathchat/laptop.yaml", "mathchat/laptop_outcome.yaml"),
    "mails": ("mails", "mails/outcome.yaml"),
}
"""The recipe of each system, and its control."""
ARMS = ("full", "outcome", "frozen")
RIGHT = "eval/part/right"
PIECE = 20
"""Steps between evaluations, saved steps, and places where a run may wait for the next hour."""
FROZEN_STEPS = 2
PARAMETERS = 134.5e6
TREES = ("--sequences", "trees")


def flags_of(system: str, arm: str) -> list[str]:
    """The flags of an arm."""
    full, outcome = SYSTEMS[system]
    flags = ["--recipe", outcome if arm == "outcome" else full, *TREES]
    return [*flags, *(["--actor.adam.lr", "0"] if arm == "frozen" else [])]


def metrics_of(run: Path) -> list[dict[str, Any]]:
    return list(RunReader(run).metrics())


def curve(run: Path) -> dict[int, float]:
    """Held-out success by step."""
    return {line["step"]: line[RIGHT] for line in metrics_of(run) if RIGHT in line}


def piece(system: str, arm: str, seed: int, until: int, out: Path) -> None:
    """Trains a run up to a step; whatever of it is there already is gone on with."""
    run = out / f"{system}-{arm}-{seed}"
    done = run / "bench.json"
    taken = json.loads(done.read_text()) if done.exists() else {"seconds": 0.0, "peak_gib": 0.0}
    words = ["train", *flags_of(system, arm), "--train.seed", str(seed), "--max_steps", str(until)]
    words += ["--ckpt.output_dir", str(run), "--ckpt.path", str(run / "checkpoints")]
    evaluated, saved = (1, until) if arm == "frozen" else (PIECE, PIECE)
    words += ["--ckpt.load_enable", "--ckpt.save_steps", str(saved)]
    words += ["--eval.steps", str(evaluated)]
    started = time.monotonic()
    peak = watched(words, str(run))[0]
    taken["seconds"] += time.monotonic() - started
    done.write_text(json.dumps(taken | {"peak_gib": max(peak, taken["peak_gib"]), "until": until}))


def line(arm: str, seeds: Sequence[int], out: Path, system: str) -> str:
    """The line of an arm in the table."""
    runs = [out / f"{system}-{arm}-{seed}" for seed in seeds]
    curves = [list(curve(run).values()) for run in runs]
    before, after = [c[0] for c in curves], [c[-1] for c in curves]
    halfway = [c[len(c) // 2] for c in curves]
    taken = [json.loads((run / "bench.json").read_text()) for run in runs]
    cells = [
        f"{system}: {arm}",
        str(len(seeds)),
        f"{statistics.fmean(before):.3f}",
        f"{statistics.fmean(halfway):.3f}",
        f"{statistics.fmean(after):.3f} ({', '.join(f'{a:.2f}' for a in after)})",
        points([b - a for a, b in zip(before, after, strict=True)]),
        f"{statistics.median(t['seconds'] for t in taken):.0f}",
        f"{max(t['peak_gib'] for t in taken):.1f}",
    ]
    return f"| {' | '.join(cells)} |"


def over(seeds: Sequence[int], out: Path, system: str) -> str:
    """The line of what full adds to the outcome alone, paired by seed."""
    after = [
        [list(curve(out / f"{system}-{arm}-{seed}").values())[-1] for seed in seeds]
        for arm in ("full", "outcome")
    ]
    gains = points([a - b for a, b in zip(*after, strict=True)])
    return f"| {system}: full over outcome | {len(seeds)} | | | | {gains} | | |"


def learn(options: argparse.Namespace) -> int:
    """Makes what is missing of all runs, and prints the table once they are there."""
    for run in restore("laptop", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    end = time.monotonic() + 60 * options.minutes
    for system, seed, arm in itertools.product(options.systems, options.seeds, options.arms):
        steps = FROZEN_STEPS if arm == "frozen" else options.steps
        done = options.out / f"{system}-{arm}-{seed}" / "bench.json"
        found = json.loads(done.read_text()) if done.exists() else {"until": 0}
        reached = found["until"]
        if reached < steps and "recorded_at" in found:
            sys.exit(
                f"{done.parent.name} is recorded with {reached} steps, and nothing goes on there"
            )
        for until in sorted({*range(PIECE, steps, PIECE), steps}):
            if until <= reached:
                continue
            if time.monotonic() > end:
                print(f"next: {system} {arm} {seed}, to step {until}; the same command goes on")
                return 3
            piece(system, arm, seed, until, options.out)
            shown = ", ".join(f"{s}: {v:.3f}" for s, v in curve(done.parent).items())
            print(f"{system} {arm} {seed}: {shown}", file=sys.stderr, flush=True)
    columns = ("before", "halfway", "after (by seed)", "gain in points", "seconds", "peak GiB")
    print(f"| arm | seeds | {' | '.join(columns)} |")
    print(f"{'|---' * 8}|")
    for system in options.systems:
        for arm in options.arms:
            print(line(arm, options.seeds, options.out, system))
        if {"full", "outcome"} <= {*options.arms}:
            print(over(options.seeds, options.out, system))
    return 0


def product_speed() -> float:
    """Operations a second of a product of float32 matrices, with the threads that a run's processes
    have."""
    import torch

    one = torch.rand(2048, 2048)
    torch.mm(one, one)
    started = time.perf_counter()
    for _ in range(10):
        torch.mm(one, one)
    return 10 * 2 * 2048**3 / (time.perf_counter() - started)


def step_time(options: argparse.Namespace) -> int:
    """The table of a step's time."""
    (system,) = options.systems
    run = options.out / f"time-{system}"
    words = ["train", *flags_of(system, "full"), "--max_steps", str(options.steps), "--json"]
    words += ["--eval.steps", "-1", "--ckpt.save_steps", "-1", "--ckpt.output_dir", str(run)]
    watched(words, str(run))
    lines = [line for line in metrics_of(run) if line["step"] > 1]
    seconds = {
        name: statistics.median(line[f"seconds/{name}"] for line in lines)
        for name in ("rollout", "advantages", "update", "sync")
    }
    whole, through = tokens_of(run, lines)
    speed = product_speed()
    limit = {"advantages": 2, "update": 6, "rollout": 2}
    print(
        f"{system}: {len(lines)} steps, {whole:.0f} tokens of rows, {through:.0f} through the model"
    )
    print(f"a product of float32 matrices: {speed / 1e9:.0f} GFLOP/s")
    print("| phase | seconds | at the product's speed |\n|---|---|---|")
    for name, taken in seconds.items():
        bound = limit.get(name, 0) * PARAMETERS * through / speed
        print(f"| {name} | {taken:.1f} | {f'{bound:.1f}' if bound else ''} |")
    print(f"| together | {sum(seconds.values()):.1f} | |")
    return 0


def tokens_of(run: Path, lines: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """Tokens of a step's rows, and of its trees."""
    steps = (min(line["step"] for line in lines), max(line["step"] for line in lines))
    whole, through = 0.0, 0.0
    saved = {line["step"]: line for line in lines}
    for trajectory in RunReader(run).trajectories(Filter(steps=steps)):
        for action in trajectory.actions:
            if action.advantage is not None:
                tokens = len(action.context_ids) + len(action.generation.ids)
                whole += tokens
                through += tokens / saved[trajectory.step][f"policy/{action.policy}/tokens_saved"]
    return whole / len(lines), through / len(lines)


def said(options: argparse.Namespace) -> int:
    """What was said on the first held-out tasks in the first and the last evaluation."""
    steps = sorted(curve(options.run))
    for step in (steps[0], steps[-1]):
        print(f"\nstep {step}: {curve(options.run)[step]:.3f} right")
        kept = RunReader(options.run).trajectories(Filter(steps=(step, step), split="eval"))
        for trajectory in itertools.islice(kept, options.tasks):
            print(f"\n{trajectory.task.prompt}")
            for action in trajectory.actions:
                print(f"  {action.role}: {action.text}")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.laptop",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    learning, timing = commands.add_parser("learn"), commands.add_parser("time")
    for command, count in ((learning, "*"), (timing, 1)):
        command.add_argument("systems", nargs=count, choices=[*SYSTEMS])
        command.add_argument("--out", type=Path, default=Path("runs/bench-laptop"))
    learning.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    learning.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    learning.add_argument("--steps", type=int, default=40)
    learning.add_argument("--minutes", type=float, default=55.0)
    add_flag(learning)
    timing.add_argument("--steps", type=int, default=4)
    saying = commands.add_parser("said")
    saying.add_argument("run", type=Path)
    saying.add_argument("--tasks", type=int, default=6)
    options = parser.parse_args()
    if options.command == "learn":
        options.systems = options.systems or list(SYSTEMS)
    return {"learn": learn, "time": step_time, "said": said}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
