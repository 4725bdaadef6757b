"""Random faults: what a run makes of a kill, a stop, a full disk, a cut file or a lost folder, at
any time and in any process.

    python -m benchmarks.trials [--trials 50] [--seed 0] [--only N ...]

A trial draws a fault, a process (or a file, or a folder), a phase and a delay, and strikes from
outside. What ended is resumed by the command that a person would type; metrics, trajectories,
ledger and final weights are compared with those of the undisturbed run, exactly; only records that
were themselves cut or removed may be missing, and are counted. A driver that is stopped for ever is
killed after a minute, because there is nobody else to notice. A disk is a small file system in
memory, which takes the rights of root. One and a half to two minutes a trial on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.faults import comparable

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from engines.relay import Started, write_recipe

SILENCE = 30  # the watchdog's limit, s
PAUSE = 60.0  # how long a paused process stands still, s
LIMIT = 300.0  # a run that has been struck and has not ended by then hangs, s
WATCHED = f"""
extends: recipe.yaml
limits: {{silence_seconds: {SILENCE}}}
flags: {{ckpt.save_steps: 1, ckpt.max_num: 2}}
"""
PHASES = ("start", "evaluation", "rollout", "update", "sync", "save")
PROCESSES = {
    "driver": r"-m marl_plugins train",
    "engine": r"Rollout",
    "policy": r"ray::PolicyActor",
    "gcs": r"gcs_server",
    "raylet": r"raylet/raylet",
    "agent": r"agent|monitor|log_monitor",
}
FILES = ("metrics.jsonl", "trajectories.jsonl", "ledger.jsonl", "checkpoint", "weights")
FOLDERS = ("a saved step", "all saved steps", "records", "Ray's")
FAULTS = {
    "kill": 0.3,
    "pause": 0.1,
    "stop": 0.15,
    "full disk": 0.2,
    "cut file": 0.15,
    "lost folder": 0.1,
}

MARKS = """
    import asyncio, os
    from pathlib import Path
    from marl_plugins import hookimpl

    synced = [0]

    def mark(phase, step):
        place = Path(__file__).with_name("phase")
        if not place.exists() or place.read_text() != f"{phase} {step}":
            place.with_suffix(".new").write_text(f"{phase} {step}")
            os.replace(place.with_suffix(".new"), place)

    @hookimpl(wrapper=True)
    def marl_generate(call):
        held_out = call.task.isdigit() and int(call.task) >= 100
        mark("evaluation" if held_out else "rollout", synced[0] if held_out else call.step)
        return (yield)

    @hookimpl(wrapper=True)
    def marl_update(step):
        mark("update", step)
        return (yield)

    @hookimpl(wrapper=True)
    def marl_sync(version):
        mark("sync", version)
        synced[0] = max(synced[0], version)
        return (yield)

    @hookimpl
    def marl_log(step):
        mark("save", step)
"""


@dataclass(frozen=True)
class Trial:
    """What is done to a run, and when: `delay` seconds after the phase of the step has begun."""

    fault: str
    target: str
    phase: str
    step: int
    delay: float

    @classmethod
    def draw(cls, dice: random.Random) -> Trial:
        fault = dice.choices(list(FAULTS), list(FAULTS.values()))[0]
        targets = {
            "full disk": ("records", "checkpoints"),
            "cut file": FILES,
            "lost folder": FOLDERS,
        }
        phase = dice.choice(PHASES)
        step = {"start": 0, "evaluation": dice.choice((0, 2)), "save": dice.choice((1, 2))}.get(
            phase, dice.choice((1, 2, 3))
        )
        delay = dice.uniform(0.0, 25.0 if phase == "start" else 0.4)
        return cls(fault, dice.choice(targets.get(fault, tuple(PROCESSES))), phase, step, delay)


class Struck:
    """One run, in a folder of its own, and everything that is done to it."""

    def __init__(self, trial: Trial, folder: Path, recipe: Path, dice: random.Random):
        self.trial, self.folder, self.dice = trial, folder, dice
        (folder / "marks.py").write_text(textwrap.dedent(MARKS))
        self.run = Started(folder, recipe, "--plugin", str(folder / "marks.py"))
        self.checkpoints = folder / "checkpoints"
        self.struck = ""

    def at_the_time(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for the phase and the delay; whether the run was still there."""
        phase = self.folder / "phase"
        wanted = f"{self.trial.phase} {self.trial.step}"
        while process.poll() is None:
            if self.trial.phase == "start" or (phase.exists() and phase.read_text() == wanted):
                time.sleep(self.trial.delay)
                return process.poll() is None
            time.sleep(0.005)
        return False

    def strike(self, process: subprocess.Popen[bytes]) -> int:
        """Do the trial's worst, and wait for the run's end.

        Returns:
            Its exit code.

        Raises:
            TimeoutError: It neither continued nor ended.
        """
        do: dict[str, Callable[[subprocess.Popen[bytes]], None]] = {
            "kill": self._signal,
            "pause": self._signal,
            "stop": self._signal,
            "full disk": self._fill,
            "cut file": self._kill_the_driver,
            "lost folder": self._lose,
        }
        do[self.trial.fault](process)
        try:
            return process.wait(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"still running {LIMIT:.0f} s after: {self.struck}") from None

    def repair(self) -> None:
        """What a person would do before typing the command again: make room. A cut file is cut now,
        when nobody writes."""
        if self.trial.fault == "full disk":
            for filler in self.folder.rglob("filler"):
                filler.unlink()
        if self.trial.fault == "cut file":
            self._cut()

    def _signal(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 60
        found: list[int] = []
        while not found and process.poll() is None and time.monotonic() < deadline:
            found = [
                int(pid)
                for pid, command in self.run.processes().items()
                if re.search(PROCESSES[self.trial.target], command)
                and (self.trial.target == "driver") == (int(pid) == process.pid)
            ]
        if not found:
            return
        pid = self.dice.choice(sorted(found))
        self.struck = f"{self.trial.target} {pid}"
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if self.trial.fault == "kill" else signal.SIGSTOP)
            if self.trial.fault == "pause":
                time.sleep(PAUSE)
                os.kill(pid, signal.SIGCONT)
            elif self.trial.fault == "stop" and self.trial.target == "driver":
                time.sleep(PAUSE)
                os.kill(pid, signal.SIGKILL)

    def _kill_the_driver(self, process: subprocess.Popen[bytes]) -> None:
        self.struck = "driver"
        process.kill()

    def _fill(self, process: subprocess.Popen[bytes]) -> None:
        place = self.run.output if self.trial.target == "records" else self.checkpoints
        self.struck = place.name
        with contextlib.suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(self.dice.choice((1, 4096, 65536))))

    def _lose(self, process: subprocess.Popen[bytes]) -> None:
        places = {
            "a saved step": sorted(self.checkpoints.glob("*/_actor/global_step*"))[-1:],
            "all saved steps": [self.checkpoints],
            "records": [self.run.output],
            "Ray's": sorted(Path("/tmp").glob(f"marl_*/ray/session_*_{process.pid}")),
        }[self.trial.target]
        for place in places:
            self.struck = place.name
            shutil.rmtree(place, ignore_errors=True)

    def _cut(self) -> None:
        candidates = {
            "checkpoint": [p for p in self.checkpoints.rglob("*") if p.is_file()],
            "weights": list(self.checkpoints.rglob("*.safetensors"))
            + list(self.checkpoints.rglob("*.pt")),
        }.get(self.trial.target, [self.run.output / self.trial.target])
        candidates = sorted(p for p in candidates if p.exists() and p.stat().st_size)
        if candidates:
            place = self.dice.choice(candidates)
            size = self.dice.randrange(place.stat().st_size)
            self.struck = (
                f"{place.relative_to(self.folder)} cut to {size} of {place.stat().st_size} bytes"
            )
            os.truncate(place, size)


@contextlib.contextmanager
def small_disks(folder: Path, wanted: bool) -> Iterator[None]:
    """The folders of a run on two small file systems of their own, each with room for the run and
    not much more."""
    places = [folder / "out", folder / "checkpoints"] if wanted else []
    for place in places:
        place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "trial", str(place)], check=True)
    try:
        yield
    finally:
        for place in places:
            subprocess.run(["umount", "-l", str(place)], check=True)


def attempt(struck: Struck, undisturbed: tuple[Any, ...]) -> dict[str, object]:
    """Run, strike, resume until it is done, compare."""
    began = time.monotonic()
    process = struck.run.start()
    there = struck.at_the_time(process)
    hit = time.monotonic()
    try:
        code = struck.strike(process) if there else process.wait(timeout=LIMIT)
    except TimeoutError:
        for pid in struck.run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        return {
            "code": "hangs",
            "ended after": "",
            "resumed": "",
            "equal": False,
            "missing": 0,
            "left": 0,
            "what": struck.struck,
        }
    ended = time.monotonic() - hit
    deadline = time.monotonic() + 120  # Ray's own two agents take up to a minute to notice
    while struck.run.processes() and time.monotonic() < deadline:
        time.sleep(0.2)
    left = len(struck.run.processes())
    struck.repair()
    codes = []
    if code or struck.trial.fault in ("cut file", "lost folder"):
        codes = resume(struck)
    last = codes[-1] if codes else code
    equal, missing = (False, 0) if last else compared(struck.run, undisturbed)
    may_miss = struck.trial.fault in ("cut file", "lost folder") and struck.trial.target in (
        *FILES[:3],
        "records",
    )
    words = ", ".join(map(str, codes)) or "no"
    return {
        "code": code,
        "ended after": f"{ended:.0f}",
        "resumed": words,
        "equal": equal and (may_miss or not missing),
        "missing": missing,
        "left": left,
        "what": struck.struck,
        "seconds": time.monotonic() - began,
    }


def compared(run: Started, undisturbed: tuple[Any, ...]) -> tuple[bool, int]:
    """Whether all that a run has left is as in the undisturbed run, and how many of its records are
    missing."""
    mine = comparable(run)
    records = [
        [json.dumps(record, sort_keys=True) for part in which[:3] for record in part]
        for which in (mine, undisturbed)
    ]
    found, wanted = map(Counter, records)
    for record in (found - wanted).elements():
        print(f"    not in the undisturbed run: {record[:2000]}", file=sys.stderr, flush=True)
    for record in (wanted - found).elements():
        print(f"    only in the undisturbed run: {record[:2000]}", file=sys.stderr, flush=True)
    return mine[3] == undisturbed[3] and found <= wanted, (wanted - found).total()


def resume(struck: Struck) -> list[int | str]:
    """The command again. Where it refuses what is damaged, its advice is followed, at most three
    times.

    Returns:
        The exit codes; after "anew" no step was left to resume, and the run was started in empty
        folders.
    """
    codes: list[int | str] = []
    for _ in range(3):
        mark = struck.run.log.stat().st_size
        code = struck.run.start("--ckpt.load_enable").wait(timeout=LIMIT)
        codes.append(code)
        if code != 2:
            return codes
        with struck.run.log.open() as log:
            log.seek(mark)
            said = log.read()
        print(textwrap.indent(said.strip()[-600:], "    "), file=sys.stderr, flush=True)
        advice = re.search(r"cp (\S+) (\S+)", said)
        if not advice:
            break
        shutil.copy(*advice.groups())
    for place in (struck.run.output, struck.checkpoints):
        shutil.rmtree(place, ignore_errors=True)
    codes += ["anew", struck.run.start().wait(timeout=LIMIT)]
    return codes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, nargs="*", help="numbers of trials, to repeat them")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    top = Path(tempfile.mkdtemp(prefix="marl-trials-"))
    recipe = write_recipe(top / "relay")
    (recipe / "watched.yaml").write_text(WATCHED)
    (top / "undisturbed").mkdir()
    undisturbed = comparable(Started(top / "undisturbed", recipe / "watched.yaml").run())
    print(
        "| trial | fault | of | in | exit code | ended after, s | resumed | equal | records "
        "missing | processes left | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|", flush=True)
    wrong = 0
    outcomes: Counter[str] = Counter()
    for number in args.only or range(args.trials):
        dice = random.Random(f"{args.seed}/{number}")
        trial = Trial.draw(dice)
        folder = top / str(number)
        folder.mkdir()
        with small_disks(folder, trial.fault == "full disk"):
            found = attempt(Struck(trial, folder, recipe / "watched.yaml", dice), undisturbed)
        good = bool(found["equal"]) and not found["left"]
        wrong += not good
        outcomes[f"{trial.fault}: {'as undisturbed' if good else 'WRONG'}"] += 1
        where = (
            f"{trial.phase} {trial.step}"
            if trial.phase != "start"
            else f"start + {trial.delay:.0f} s"
        )
        what = (
            f"{trial.target} ({found['what']})" if found["what"] else f"{trial.target} (not there)"
        )
        print(
            f"| {number} | {trial.fault} | {what} | {where} | {found['code']} | "
            f"{found['ended after']} | {found['resumed']} | "
            f"{'yes' if found['equal'] else 'NO'} | {found['missing']} | {found['left']} | "
            f"{found.get('seconds', 0):.0f} |",
            flush=True,
        )
        if good:
            shutil.rmtree(folder)
    print("\n" + "\n".join(f"{kind}: {count}" for kind, count in sorted(outcomes.items())))
    return wrong


if __name__ == "__main__":
    sys.exit(main())
