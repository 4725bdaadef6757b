"""How long a later step of the demo takes with and without `--train.async_enable`, in turn:

    python -m benchmarks.async_steps [--rounds 2] [--steps 12] [--skip 3] [--recipe RECIPE] [FLAGS
    ...]

Wall and CPU seconds a step over the steps after the first `--skip`, without evaluations and saving;
CPU seconds are those of all processes of the run. Whether both learn the same is another question,
five seeds each, paired by seed:

    python -m benchmarks.demo --arms coach async async_token frozen --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.recipe.shipped import recipes_root

RECIPE = str(recipes_root() / "mathchat" / "tiny.yaml")
ASYNC = ["--train.async_enable"]
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(mark: bytes) -> float:
    """CPU seconds of all processes whose environment holds the mark."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                total += int(fields[11]) + int(fields[12])
        except OSError:
            continue
    return total / TICKS


def one_run(words: Sequence[str], steps: int, skip: int) -> dict[str, float]:
    """Seconds a step, wall and CPU, over the steps after the first `skip`; and the run's own means
    of its phases."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"MARL_BENCH={folder}"
        command = [
            sys.executable,
            "-m",
            "marl_plugins",
            "train",
            *words,
            "--json",
            "--max_steps",
            str(steps),
        ]
        command += ["--eval.steps", "-1", "--ckpt.save_steps", "-1"]
        command += ["--ckpt.output_dir", f"{folder}/out", "--ckpt.path", f"{folder}/ck"]
        env = {**os.environ, "MARL_BENCH": folder}
        at: dict[int, tuple[float, float]] = {}
        phases: dict[str, list[float]] = {}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                metrics = json.loads(line)
                if not (step := int(metrics.get("step", 0))):
                    continue
                at[step] = time.monotonic(), cpu_seconds(mark.encode())
                for name, value in metrics.items() if step > skip else ():
                    if name.startswith("seconds/") and "/" not in name.removeprefix("seconds/"):
                        phases.setdefault(name, []).append(value)
        (began, cpu_began), (ended, cpu_ended) = at[skip], at[steps]
    count = steps - skip
    means = {name: statistics.fmean(values) for name, values in phases.items()}
    return {"wall": (ended - began) / count, "cpu": (cpu_ended - cpu_began) / count, **means}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.async_steps", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--skip", type=int, default=3)
    parser.add_argument("--recipe", default=RECIPE)
    options, flags = parser.parse_known_args()
    words = ["--recipe", options.recipe, *flags]
    found: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
    for _ in range(options.rounds):
        for name, more in (("off", []), ("on", ASYNC)):
            found[name].append(one_run([*words, *more], options.steps, options.skip))
            print(
                name, {key: round(value, 3) for key, value in found[name][-1].items()}, flush=True
            )
    for what in ("wall", "cpu"):
        off, on = (statistics.fmean(run[what] for run in found[name]) for name in ("off", "on"))
        print(f"{what}: {off:.2f} s a step without, {on:.2f} with: {on / off:.2f}", flush=True)


if __name__ == "__main__":
    main()
