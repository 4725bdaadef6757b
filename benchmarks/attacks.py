"""Programs that take what they can, as fast as they can, and random system calls:

    python -m benchmarks.attacks [CALLS] [--hogs NAME ...]

At each level that isolates: every hog of tests/hogs.py by itself, what it says that it took of its
limit (256 MB, or 32 tasks), and by how much the machine's memory and disk fell meanwhile; then so
many random calls (100,000), after which a neighbour lives, nothing outside has changed, and no
process and no folder is left.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hogs import HOGS, amount, source
from hostile_programs import LEVELS, processes_left
from random_calls import digest, make_calls, state_of

from marl_plugins.sandbox import Limits, Program, open_sandbox
from marl_plugins.sandbox.section import Level, SandboxConfig

CALLS = 100_000
TAKING = Limits(
    seconds=5.0, memory_mb=256, disk_mb=256, file_mb=512, processes=32, output_chars=10**6
)
LIMIT = {"memory": TAKING.memory_mb, "disk": TAKING.disk_mb, "tasks": TAKING.processes}
PAUSE = 0.01


def free() -> tuple[int, int]:
    """MB of memory and of disk that are free."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    memory = next(int(line.split()[1]) >> 10 for line in lines if line.startswith("MemAvailable"))
    disk = os.statvfs(tempfile.gettempdir())
    return memory, disk.f_bavail * disk.f_frsize >> 20


async def take(level: Level, hogs: Sequence[str]) -> None:
    """Let hogs take what they can."""
    async with open_sandbox(SandboxConfig(isolation=level), concurrency=1) as sandbox:
        for name in hogs:
            hog = HOGS[name]
            before = least = free()
            running = asyncio.create_task(sandbox.run(Program(source(hog, 0.0), limits=TAKING)))
            while not running.done():
                least = min(least[0], free()[0]), min(least[1], free()[1])
                await asyncio.sleep(PAUSE)
            got = running.result()
            part = amount(got.stdout) / LIMIT[hog.kind]
            fell = f"memory fell by {before[0] - least[0]} MB, disk by {before[1] - least[1]} MB"
            print(f"  {name}: {part:.2f} of its limit; {got.status}; {fell}", flush=True)


def call(level: Level, calls: int) -> None:
    """Make random calls, and see that nothing has changed."""
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        victim = stack.enter_context(
            subprocess.Popen(["/bin/sleep", "3600"], start_new_session=True)
        )
        stack.callback(victim.kill)
        os.chmod(place, 0o711)
        outside = Path(place, "outside")
        (outside / "folder").mkdir(parents=True)
        (outside / "file").write_text("as it was")
        tempfile.tempdir = place
        before, room, started = (digest(outside), state_of(victim.pid)), free(), time.monotonic()
        made, neighbour = asyncio.run(make_calls(level, calls, Path(place), victim.pid))
        seconds = time.monotonic() - started
        assert neighbour.stdout == "lived\n" and victim.poll() is None
        assert (digest(outside), state_of(victim.pid)) == before
        assert processes_left(place) == [] and sorted(os.listdir(place)) == [
            "outside",
            "workspaces",
        ]
        tempfile.tempdir = None
        after = free()
        change = f"memory {after[0] - room[0]:+} MB, disk {after[1] - room[1]:+} MB"
        print(
            f"  {made:,} random calls in {seconds:.0f} s: nothing has changed; {change}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("calls", type=int, nargs="?", default=CALLS)
    parser.add_argument("--hogs", nargs="+", choices=list(HOGS), default=list(HOGS), metavar="NAME")
    options = parser.parse_args()
    for level in LEVELS:
        if level != "process":
            print(level)
            asyncio.run(take(level, options.hogs))
            call(level, options.calls)


if __name__ == "__main__":
    main()
