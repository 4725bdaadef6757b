"""From `openrlhf train` to the first finished update: three policies on three vLLM engines, KL on,
operators built.

    python -m benchmarks.startup [runs] [flags of `openrlhf train`, for a comparison]

Prints seconds to the first finished step, each later step's time beyond generation, and the peak of
the summed memory (proportional set size, so that shared pages count once) of all the run's
processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

RECIPE = str(Path(__file__).resolve().parent.parent / "tests" / "recipes" / "sums" / "tiny.yaml")
"""Three separate policies with references, random models: nothing but the machinery."""


def memory(mark: bytes) -> float:
    """GiB of all processes whose environment holds the mark."""
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (folder / "environ").read_bytes():
                text = (folder / "smaps_rollup").read_text()
                total += int(
                    next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1]
                )
        except (OSError, StopIteration):
            continue
    return total / 2**20


def one_run(flags: Sequence[str]) -> tuple[float, list[float], float]:
    """Return seconds to the first step, seconds beyond generation of the later ones, peak GiB."""
    with tempfile.TemporaryDirectory() as folder:
        mark = f"MARL_BENCH={folder}"
        words = ["train", "--recipe", RECIPE, "--json", "--max_steps", "10"]
        words += ["--ckpt.output_dir", f"{folder}/out", "--ckpt.path", f"{folder}/ck", *flags]
        peak, running = 0.0, True

        def watch() -> None:
            nonlocal peak
            while running:
                peak = max(peak, memory(mark.encode()))
                time.sleep(1.0)

        threading.Thread(target=watch, daemon=True).start()
        started = time.monotonic()
        env = {**os.environ, "MARL_BENCH": folder}
        first, beyond = 0.0, list[float]()
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", "marl_plugins", *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=env,
            )
            assert process.stdout
            for line in process.stdout:
                metrics = json.loads(line)
                if "report" in metrics:
                    continue
                if metrics["step"] == 1:
                    first = time.monotonic() - started
                else:
                    beyond.append(
                        sum(
                            v
                            for k, v in metrics.items()
                            if k.startswith("seconds/") and k != "seconds/rollout"
                        )
                    )
        finally:
            running = False
        if process.wait():
            raise RuntimeError("the run failed; run it by hand")
        return first, beyond, peak


def main(runs: int, flags: Sequence[str]) -> None:
    found = [one_run(flags) for _ in range(runs)]
    first, beyond, peaks = (
        [f for f, _, _ in found],
        [b for _, bs, _ in found for b in bs],
        [p for _, _, p in found],
    )
    print(
        f"to the first finished update: {statistics.median(first):.0f} s "
        f"({min(first):.0f}-{max(first):.0f})"
    )
    print(
        f"later steps beyond generation: {statistics.median(beyond):.2f} s "
        f"({min(beyond):.2f}-{max(beyond):.2f})"
    )
    print(f"peak memory of all processes: {max(peaks):.1f} GiB")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3, sys.argv[2:])
