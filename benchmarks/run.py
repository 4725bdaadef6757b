"""All benchmarks but the faults (fifteen minutes of their own): `python -m benchmarks.run`."""

from __future__ import annotations

import subprocess
import sys
import time


def light_commands() -> None:
    """Seconds of the commands that have to be quick, five runs each."""
    for words in (
        ["--help"],
        ["plugins"],
        ["train", "--recipe", "mathchat/tiny.yaml", "--dry-run"],
    ):
        times = []
        for _ in range(5):
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "marl_plugins", *words],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            times.append(time.perf_counter() - started)
        print(
            f"openrlhf {' '.join(words)}: {sorted(times)[2]:.2f} s "
            f"({min(times):.2f}-{max(times):.2f})",
            flush=True,
        )


if __name__ == "__main__":
    light_commands()
    for module in ("arithmetic", "compat", "weight_sync", "startup"):
        subprocess.run([sys.executable, "-W", "ignore", "-m", f"benchmarks.{module}"], check=True)
