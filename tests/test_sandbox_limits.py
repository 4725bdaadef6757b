"""What programs take together stays within their limits, however they take it; and random system
calls change nothing outside."""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hogs import HOGS, amount, source
from hostile_programs import LEVELS, processes_left
from random_calls import digest, make_calls, state_of

from marl_plugins.sandbox import Limits, Program, levels, open_sandbox
from marl_plugins.sandbox.section import SandboxConfig

ISOLATING = [level for level in LEVELS if level != "process"]
TAKING = Limits(
    seconds=2.5, memory_mb=256, disk_mb=256, file_mb=512, processes=32, output_chars=10**6
)
BUSY = 3.0
"""Part of its limit that a program takes at most on a machine on which other tests run; what is not
counted takes four times its limit. benchmarks/attacks.py has the figures of a quiet one."""
MOST = {
    "memory": BUSY * TAKING.memory_mb,
    "disk": BUSY * TAKING.disk_mb,
    "tasks": 1.0 * TAKING.processes,
}
CALLS = 1000


def pause(hog):
    """Seconds for each MB, so that the bounds hold on a busy machine too, and that one process alone
    would pass them in its time."""
    if hog.kind == "tasks":
        return 0.0
    together = "children(" in hog.program
    return {"memory": 0.02, "disk": 0.004}[hog.kind] if together else 0.002


@pytest.mark.parametrize("level", ISOLATING)
def test_no_program_takes_more_than_its_limits(level):
    async def work():
        async with open_sandbox(SandboxConfig(isolation=level), concurrency=4) as sandbox:
            programs = [Program(source(hog, pause(hog)), limits=TAKING) for hog in HOGS.values()]
            return await asyncio.gather(*[sandbox.run(each) for each in programs])

    done = asyncio.run(work())
    taken = {name: (amount(got.stdout), got.status) for name, got in zip(HOGS, done, strict=True)}
    assert {n: found for n, found in taken.items() if found[0] > MOST[HOGS[n].kind]} == {}
    assert all(status != "finished" for _, status in taken.values()), taken


@pytest.mark.parametrize("level", ISOLATING)
@pytest.mark.parametrize("abi", [1, None])
def test_random_system_calls_change_nothing_outside(level, abi, monkeypatch):
    there = levels.examine()
    monkeypatch.setattr(
        levels, "examine", lambda: replace(there, abi=there.abi if abi is None else abi)
    )
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        victim = stack.enter_context(
            subprocess.Popen(["/bin/sleep", "600"], start_new_session=True)
        )
        stack.callback(victim.kill)
        monkeypatch.setattr(tempfile, "tempdir", place)
        os.chmod(place, 0o711)
        outside = Path(place, "outside")
        (outside / "folder").mkdir(parents=True)
        (outside / "file").write_text("as it was")
        before = digest(outside), state_of(victim.pid)

        made, neighbour = asyncio.run(make_calls(level, CALLS, Path(place), victim.pid))
        lived, after = victim.poll() is None, (digest(outside), state_of(victim.pid))
        until = time.monotonic() + 10
        while processes_left(place) and time.monotonic() < until:
            time.sleep(0.01)
        left = processes_left(place), sorted(path.name for path in Path(place).iterdir())
    assert (made, neighbour.stdout, lived, after, left) == (
        CALLS,
        "lived\n",
        True,
        before,
        ([], ["outside", "workspaces"]),
    )
