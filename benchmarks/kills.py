"""kill -9 at random moments, starts included, of runs whose engines change policy, which stream,
and whose policies share seats.

    python -m benchmarks.kills [--kills 50] [--seed 0] [--arms seats gradients]

    seats        engines that change policy, forward passes beside the rollout, training processes
                 that take turns on two seats
    gradients    engines that change policy, and gradients beside the rollout

A kill draws a kind of process, one of the processes of that kind that are there (with seats,
training processes are spares as
often as not), and a moment: a phase of a step and a delay, or a time on the clock, which mostly
falls into a start. A run is struck five times; where a kill ends it, the same command resumes it,
as a person would, and the next kill may meet that start. Every arm is then compared with its
undisturbed run, exactly: metrics, trajectories, ledger and final weights. Three to five minutes a
run on two cores.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults import comparable
from benchmarks.trials import LIMIT, MARKS, PHASES, PROCESSES, compared

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from engines.relay import Started, wait_until, write_recipe

KILLED = """
extends: recipe.yaml
limits: {engine_restarts: 1000}
flags: {ckpt.save_steps: 1, ckpt.max_num: 2}
"""
MOVES = [
    "--plugin",
    "marl_plugins.balance",
    "--policy.first.vllm.num_engines",
    "2",
    "--balance.in_flight",
    "1",
]
STREAMING = ["--plugin", "marl_plugins.streaming"]
SEATS = ["--plugin", "marl_plugins.process_groups", "--process_groups.seats", "2"]
ARMS = {
    "seats": [*MOVES, *STREAMING, *SEATS],
    "gradients": [*MOVES, *STREAMING, "--streaming.gradients", "--train.batch_size", "6"],
}
KINDS = {"engine": 3, "policy": 3, "driver": 1}
"""How often each is drawn. A killed engine is replaced, and so is a spare; the others end the
run."""
A_RUN = 5
CLOCK = 40.0  # the latest moment of a kill on the clock, s


@dataclass(frozen=True)
class Moment:
    """`delay` seconds after the phase has begun, of any step; or after the kill before it, where no
    phase is named."""

    kind: str
    phase: str
    delay: float

    @classmethod
    def draw(cls, dice: random.Random) -> Moment:
        (kind,) = dice.choices(list(KINDS), list(KINDS.values()))
        if dice.random() < 0.5:
            return cls(kind, "", dice.uniform(0.0, CLOCK))
        return cls(kind, dice.choice(PHASES[1:]), dice.uniform(0.0, 0.4))

    def wait(self, process: subprocess.Popen[bytes], marks: Path) -> str:
        """What the run was doing then; empty if it has ended before."""
        since = time.time_ns()
        while process.poll() is None:
            if not self.phase or (
                _changed(marks) > since and marks.read_text().startswith(self.phase)
            ):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(self.delay)
                    return ""
                return marks.read_text() if _changed(marks) else "start"
            time.sleep(0.005)
        return ""


def _changed(marks: Path) -> int:
    return marks.stat().st_mtime_ns if marks.exists() else 0


class Struck:
    """One run, killed and resumed until it is done."""

    def __init__(self, folder: Path, words: list[str], recipe: Path, dice: random.Random):
        self.dice, self.marks = dice, folder / "phase"
        (folder / "marks.py").write_text(textwrap.dedent(MARKS))
        self.run = Started(folder, recipe, *words, "--plugin", str(folder / "marks.py"))
        self.killed: Counter[str] = Counter()
        self.codes: list[int] = []
        """Of each start."""
        self.left = 0
        """Processes that outlived a run that had ended."""

    def to_its_end(self, kills: int) -> None:
        """All starts.

        Raises:
            TimeoutError: A run neither goes on nor ends.
        """
        while not self.codes or self.codes[-1]:
            self.marks.unlink(missing_ok=True)
            process = self.run.start(*(["--ckpt.load_enable"] if self.codes else []))
            while process.poll() is None and self.killed.total() < kills:
                self._kill(process)
            try:
                self.codes.append(process.wait(LIMIT))
            except subprocess.TimeoutExpired:
                raise TimeoutError(
                    f"still running {LIMIT:.0f} s after the last of {dict(self.killed)}"
                ) from None
            wait_until(
                lambda: not self.run.processes(), 120
            )  # Ray's own two agents take up to a minute to notice
            self.left += len(self.run.processes())
            if self.codes[-1] == 2 or len(self.codes) > 3 * kills:
                return  # refused; the log says why

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        moment = Moment.draw(self.dice)
        doing = moment.wait(process, self.marks)
        if not doing:
            return
        title = PROCESSES[moment.kind]
        found = [
            int(pid)
            for pid, command in self.run.processes().items()
            if re.search(title, command) and (moment.kind == "driver") == (int(pid) == process.pid)
        ]
        if found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.dice.choice(sorted(found)), signal.SIGKILL)
                self.killed[f"{moment.kind} in {doing.partition(' ')[0]}"] += 1

    def end(self) -> None:
        """Kill what is left of a run that hangs."""
        for pid in self.run.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50, help="of all arms together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    top = Path(tempfile.mkdtemp(prefix="marl-kills-"))
    recipe = write_recipe(top / "relay")
    (recipe / "killed.yaml").write_text(KILLED)
    print(
        "| arm | run | killed | exit codes | moves of engines | as the undisturbed run | processes "
        "left | seconds |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    wrong, total = 0, 0
    for arm in args.arms:
        (top / arm).mkdir()
        undisturbed = Started(top / arm, recipe / "killed.yaml", *ARMS[arm]).run()
        expected, number = comparable(undisturbed), 0
        wanted = total + args.kills // len(args.arms)
        while total < wanted:
            folder = top / f"{arm}-{number}"
            folder.mkdir()
            began = time.monotonic()
            struck = Struck(
                folder,
                ARMS[arm],
                recipe / "killed.yaml",
                random.Random(f"{args.seed}/{arm}/{number}"),
            )
            try:
                struck.to_its_end(min(A_RUN, wanted - total))
                equal, missing = (
                    compared(struck.run, expected) if not struck.codes[-1] else (False, 0)
                )
            except TimeoutError as error:
                print(f"    {folder}: {error}", file=sys.stderr, flush=True)
                struck.end()
                equal, missing = False, 0
            good = equal and not missing and not struck.left
            wrong += not good
            total += struck.killed.total()
            killed = ", ".join(f"{count} {what}" for what, count in sorted(struck.killed.items()))
            moves = int(sum(m["engines/moves"] for m in struck.run.metrics)) if equal else ""
            print(
                f"| {arm} | {number} | {killed} | {', '.join(map(str, struck.codes))} | {moves} | "
                f"{'yes' if good else 'NO'} | "
                f"{struck.left} | {time.monotonic() - began:.0f} |",
                flush=True,
            )
            number += 1
    print(f"\n{total} kills, {wrong} runs not as undisturbed")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
