"""Seconds of `openrlhf compat` on a local tree, and what passing through adds to upstream's start:
`python -m benchmarks.compat`

On a machine with an accelerator `openrlhf train FLAGS` replaces itself with upstream's command.
Both get a value that upstream refuses, so that the time covers every import up to its parser. The
two run in pairs, with the order alternating; upstream's flash_attn, which requires CUDA, is an
empty package here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.engine.hosts import cpu, upstream_cli

GOOD = "everything that this project depends on is there"
REFUSED = ["--train.seed", "x"]


def time_command(command: Sequence[str], env: dict[str, str], expected: str) -> float:
    """Wall clock of a command whose output must contain a text."""
    started = time.perf_counter()
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    taken = time.perf_counter() - started
    assert expected in done.stdout + done.stderr, done.stderr[-1000:]
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compat", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--checks", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()
    python, tree = sys.executable, str(upstream_cli.upstream_root().parent)
    checks = [
        time_command([python, "-m", "marl_plugins", "compat", tree], dict(os.environ), GOOD)
        for _ in range(options.checks)
    ]
    print(
        f"openrlhf compat FOLDER: {statistics.median(checks):.2f} s "
        f"({min(checks):.2f}-{max(checks):.2f})",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        for module, functions in cpu.FLASH_ATTN.items():
            package = Path(folder, *module.split("."))
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text("".join(f"{name} = None\n" for name in functions))
        env = {
            **os.environ,
            cpu.DEVICE: "cuda",
            "PYTHONPATH": os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")]),
        }
        commands = {
            "through": [python, "-m", "marl_plugins", "train", *REFUSED],
            "direct": [python, "-m", "openrlhf.cli.train_ppo_ray", *REFUSED],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for pair in range(options.pairs):
            for name in sorted(commands, reverse=pair % 2 == 1):
                times[name].append(time_command(commands[name], env, "invalid int value: 'x'"))
    if not options.pairs:
        return
    added = [a - b for a, b in zip(times["through"], times["direct"], strict=True)]
    print(
        f"upstream's start: {statistics.median(times['direct']):.2f} s; passing through adds "
        f"{statistics.median(added):.2f} s "
        f"({min(added):.2f} to {max(added):.2f} over {options.pairs} pairs)"
    )


if __name__ == "__main__":
    main()
