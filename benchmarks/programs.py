"""Programs that do their worst, written by an agent of a workflow and run by the python tool:

    python -m benchmarks.programs [NAME ...]

Each program of tests/hostile_programs.py is the only answer of an agent, under the limits of the
recipes' defaults; as many run at a time as there are cores. Printed for each: whether the tool said
that it went well, its seconds, and how its output ends. Then
what the run would have noticed: answers, runs ended, processes and folders left, and the longest
time for which the event loop did nothing else. Last, the speed of a program that does no harm.
About two minutes on two cores.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hostile_programs import PROGRAMS, Stalls, processes_left, run_answer

from marl_plugins.builtin.tools.python import PythonToolConfig, python_tool, run_program, sandbox_of
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.sandbox.section import SandboxConfig


async def attack(
    programs: Mapping[str, str],
) -> tuple[dict[str, Trajectory | BaseException], float]:
    """What came of each program, and the longest stall of the event loop."""
    opened = sandbox_of(PythonToolConfig(), SandboxConfig())
    tool = python_tool(PythonToolConfig(), opened)
    await opened.sandbox.start()
    async with Stalls() as stalls:
        found = await asyncio.gather(
            *[run_answer([program], tool, seconds=600) for program in programs.values()],
            return_exceptions=True,
        )
    await opened.close()
    return dict(zip(programs, found, strict=True)), stalls.longest


async def endless() -> Trajectory:
    """An answer with 40 programs without end."""
    found: Trajectory = await run_answer(
        ["while 1:0"] * 40, python_tool(PythonToolConfig()), seconds=600
    )
    return found


async def speed(config: PythonToolConfig, runs: int) -> list[float]:
    """Seconds of a program that prints a number, each time."""
    times = []
    opened = sandbox_of(config, SandboxConfig())
    await opened.sandbox.start()
    for _ in range(runs):
        started = time.perf_counter()
        assert (await run_program("print(1)", config, opened.sandbox)).output == "1"
        times.append(time.perf_counter() - started)
    await opened.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="only these programs, without the forty that have no end",
    )
    parser.add_argument("--runs", type=int, default=41, help="of the program that does no harm")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tempfile.tempdir = folder
        found, stall = asyncio.run(
            attack({name: PROGRAMS[name] for name in options.names or PROGRAMS})
        )
        ended = lost = 0
        print("| program | ok | seconds | the end of its output |\n|---|---|---|---|")
        for name, got in found.items():
            if isinstance(got, BaseException):
                ended += 1
                print(f"| {name} | run ended | | {got!r} |")
                continue
            lost += got.infrastructure_failure is not None
            for result in got.actions[0].tool_results:
                said = ascii(result.output[-70:])[1:-1].replace("|", "\\|")
                print(
                    f"| {name} | {'yes' if result.ok else 'no'} | {result.seconds:.1f} | {said} |"
                )
        answers = len(found) - ended - lost
        print(
            f"{len(found)} programs: {answers} answers, {ended} runs ended, {lost} lost to "
            "infrastructure, "
            f"{len(processes_left(folder))} processes left, {len(list(Path(folder).iterdir()))} "
            "folders left, "
            f"event loop stalled at most {stall:.2f} s",
            flush=True,
        )
        if not options.names:
            got = asyncio.run(endless())
            results = got.actions[0].tool_results
            print(
                f"40 programs without end in one answer: {len(results) - 1} run, {got.seconds:.0f} "
                f"s, {results[-1].output!r}"
            )
        for packages in (True, False):
            times = asyncio.run(speed(PythonToolConfig(packages=packages), options.runs))
            print(
                f"print(1), packages: {str(packages).lower()}: "
                f"{statistics.median(times) * 1e3:.0f} ms "
                f"({min(times) * 1e3:.0f}-{max(times) * 1e3:.0f})"
            )


if __name__ == "__main__":
    main()
