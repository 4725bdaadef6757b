"""What `make demo` learns, over seeds, beside its controls: `make bench-demo` (two hours on two
cores), or

    python -m benchmarks.demo --out FOLDER [--seeds 5] [--control_seeds 3] [--arms ARM ...]
    [--recorded]

    coach         recipes/mathchat/tiny.yaml: rewards per action from the rubric coach
    outcome       tiny_outcome.yaml: the same rollouts and budget, every action rewarded with the
                  outcome
    frozen        learning rate 0 (a few steps: nothing changes, and evaluations repeat their
                  samples)
    coach - ROLE  the coach's final weights with one role's initial weights put back (`put_back`)
    shared        one policy for the three roles
    adapters      tiny_adapters.yaml: the three policies as adapters of one model (only where it is
                  named)
    async         coach with the next rollout during each update (only where it is named; seeds and
                  pairs as of the coach)
    async_token   the same with --algo.advantage.is_correction_level token

Success of the whole system on 400 held-out problems, sampled at the training temperature: "before"
is step 0, "after" the mean of the last three evaluations. Gains in points with 95 % t-intervals
over seeds; steps to 0.65 are those of the first evaluation there (every ten steps; a run that does
not get there counts as its last step). Finished runs in FOLDER are not repeated.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.recorded import add_flag, restore
from benchmarks.startup import memory
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.intervals import t_quantile
from marl_plugins.engine.records.read import RunReader

MATHCHAT = recipes_root() / "mathchat"
ROLES = ("solver", "coder", "verifier")
COACH = ["--recipe", str(MATHCHAT / "tiny.yaml")]
ARMS: dict[str, list[str]] = {
    "coach": COACH,
    "outcome": ["--recipe", str(MATHCHAT / "tiny_outcome.yaml")],
    "shared": [*COACH, "--mapping", "shared"],
    "adapters": ["--recipe", str(MATHCHAT / "tiny_adapters.yaml")],
    "async": [*COACH, "--train.async_enable"],
    "async_token": [
        *COACH,
        "--train.async_enable",
        "--algo.advantage.is_correction_level",
        "token",
    ],
    "frozen": [*COACH, "--actor.adam.lr", "0", "--max_steps", "8", "--eval.steps", "2"],
}
PAIRED = ("async", "async_token")
"""Arms that are compared with the coach seed by seed."""


def train(arm: str, flags: Sequence[str], seed: int, out: Path) -> dict[str, Any]:
    """One run's report, with its seconds and peak memory; from its files where it has been made
    before."""
    folder = out / f"{arm}-{seed}"
    done = folder / "bench.json"
    if not done.exists():
        words = ["train", *flags, "--train.seed", str(seed), "--json"]
        words += ["--ckpt.output_dir", str(folder), "--ckpt.path", str(folder / "checkpoints")]
        started = time.monotonic()
        peak, text = watched(words, str(folder))
        report = json.loads(text.splitlines()[-1])["report"]
        done.write_text(
            json.dumps({"report": report, "seconds": time.monotonic() - started, "peak_gib": peak})
        )
    found: dict[str, Any] = json.loads(done.read_text())
    return found


def watched(words: Sequence[str], mark: str) -> tuple[float, str]:
    """Peak GiB of a command's processes, and what it printed."""
    peak, running = 0.0, True

    def watch() -> None:
        nonlocal peak
        while running:
            peak = max(peak, memory(f"MARL_BENCH={mark}".encode()))
            time.sleep(2.0)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    command = [sys.executable, "-m", "marl_plugins", *words]
    env = {**os.environ, "MARL_BENCH": mark}
    try:
        text = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, check=True, env=env
        ).stdout
    finally:
        running = False
    watcher.join()
    return peak, text


def put_back(role: str, seed: int, out: Path) -> float:
    """Held-out success of the coach's final weights with one role's initial weights; role `none`
    changes nothing."""
    folder = out / f"coach-{seed}"
    done = folder / f"without-{role}.json"
    if not done.exists():
        words = [
            "eval",
            *ARMS["coach"],
            "--train.seed",
            str(seed),
            "--json",
            "--models",
            str(folder),
        ]
        words += ["--only", *[r for r in ROLES if r != role]]
        done.write_text(watched(words, str(folder))[1].splitlines()[-1])
    return float(json.loads(done.read_text())["outcome"])


def points(values: Sequence[float]) -> str:
    """Mean and 95 % t-interval over seeds, in percentage points."""
    mean = 100 * statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:+.1f}"
    half = 100 * t_quantile(len(values) - 1) * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:+.1f} [{mean - half:+.1f}, {mean + half:+.1f}]"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/bench-demo"))
    parser.add_argument("--seeds", type=int, default=5, help="of the coach")
    parser.add_argument("--control_seeds", type=int, default=3, help="of everything else")
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[*ARMS, "put_back"],
        default=["coach", "outcome", "frozen", "put_back", "shared"],
    )
    add_flag(parser)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("demo", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    print(
        "| arm | seeds | before | after | gain in points | steps to 0.65 | seconds | peak GiB |",
        flush=True,
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for arm in options.arms:
        if arm == "put_back":
            without_each(options.control_seeds, options.out)
        else:
            paired = arm in PAIRED and "coach" in options.arms
            print(
                row(
                    arm,
                    options.seeds if paired or arm == "coach" else options.control_seeds,
                    options.out,
                ),
                flush=True,
            )
            if paired:
                print(against_coach(arm, options.seeds, options.out), flush=True)


def without_each(seeds: int, out: Path) -> None:
    """The lines of the roles that are put back."""
    whole = [put_back("none", seed, out) for seed in range(seeds)]
    for role in ROLES:
        without = [put_back(role, seed, out) for seed in range(seeds)]
        losses = [w - all_ for w, all_ in zip(without, whole, strict=True)]
        means = f"{statistics.fmean(whole):.3f} | {statistics.fmean(without):.3f}"
        print(f"| coach - {role} | {seeds} | {means} | {points(losses)} | | | |", flush=True)


def against_coach(arm: str, seeds: int, out: Path) -> str:
    """The line of what an arm's final success has over the coach's, seed by seed."""

    def after(name: str) -> list[float]:
        return [
            train(name, ARMS[name], seed, out)["report"]["held_out"]["after"]["outcome"]
            for seed in range(seeds)
        ]

    differences = [a - b for a, b in zip(after(arm), after("coach"), strict=True)]
    return f"| {arm} - coach | {seeds} | | | {points(differences)} | | | |"


def steps_to(folder: Path, success: float) -> int:
    """The step of the first evaluation with at least this success, or the run's last step."""
    step = 0
    for metrics in RunReader(folder).metrics():
        step = metrics["step"]
        if metrics.get("eval/outcome", 0.0) >= success:
            break
    return int(step)


def row(arm: str, seeds: int, out: Path) -> str:
    """One arm's line of the table."""
    runs = [train(arm, ARMS[arm], seed, out) for seed in range(seeds)]
    before, after = (
        [r["report"]["held_out"][when]["outcome"] for r in runs] for when in ("before", "after")
    )
    gains = [a - b for a, b in zip(after, before, strict=True)]
    seconds, peak = statistics.median(r["seconds"] for r in runs), max(r["peak_gib"] for r in runs)
    means = f"{statistics.fmean(before):.3f} | {statistics.fmean(after):.3f}"
    steps = [steps_to(out / f"{arm}-{seed}", 0.65) for seed in range(seeds)]
    reached = f"{statistics.fmean(steps):.0f} ({min(steps)}-{max(steps)})"
    return (
        f"| {arm} | {len(runs)} | {means} | {points(gains)} | {reached} | {seconds:.0f} | "
        f"{peak:.1f} |"
    )


if __name__ == "__main__":
    main()
