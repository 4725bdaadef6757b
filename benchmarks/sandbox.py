"""What the sandbox costs, in turn with a bare Python in the same run:
`python -m benchmarks.sandbox [ROUNDS [LEVEL ...]]`

`print(1)` by `python -I -c`, by the same without site-packages (`-S`), and at each level that this
machine has, with and without scikit-learn imported beforehand, in turn; 50 programs at once at each
level, with the longest time for which the event loop did nothing else; and what it takes to start.
Every output is asserted. Printed are medians with the range of the middle half, and ratios to the
bare Python of the same run.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from hostile_programs import LEVELS, Stalls

from marl_plugins.sandbox import Program, Sandbox, open_sandbox
from marl_plugins.sandbox.section import SandboxConfig

ROUNDS = 60
AT_ONCE = 50
HEAVY = [
    "pandas",
    "sklearn.ensemble",
    "sklearn.linear_model",
    "sklearn.pipeline",
    "sklearn.preprocessing",
]
IMPORTING = "import pandas, sklearn.ensemble\nprint(1)"


async def bare(source: str, *options: str) -> float:
    """Seconds of a program by an interpreter of its own."""
    started = time.perf_counter()
    words = [sys.executable, "-I", *options, "-c", source]
    process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert output == b"1\n"
    return time.perf_counter() - started


async def sandboxed(sandbox: Sandbox, source: str) -> float:
    """Seconds of a program in a sandbox."""
    started = time.perf_counter()
    assert (await sandbox.run(Program(source))).stdout == "1\n"
    return time.perf_counter() - started


def shown(times: list[float], base: list[float]) -> str:
    """A median with its range, and the ratio to another one."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (
        f"{middle * 1e3:.1f} ms ({low * 1e3:.1f}-{high * 1e3:.1f}), "
        f"{middle / statistics.median(base):.2f} of bare"
    )


async def main(rounds: int, levels: Sequence[str]) -> None:
    imports = [name for name in HEAVY if find_spec(name.partition(".")[0])]
    async with contextlib.AsyncExitStack() as stack:
        sandboxes: dict[str, Sandbox] = {}
        for level in levels:
            for what, config in (
                ("", []),
                (" with " + ", ".join(sorted({n.partition(".")[0] for n in imports})), imports),
            ):
                started = time.perf_counter()
                opened = open_sandbox(SandboxConfig(isolation=level, imports=config), concurrency=8)
                sandboxes[level + what] = await stack.enter_async_context(opened)
                print(
                    f"{level + what}: started in {time.perf_counter() - started:.2f} s", flush=True
                )
        times: dict[str, list[float]] = {name: [] for name in ("bare", "bare -S", *sandboxes)}
        for _ in range(rounds):
            times["bare"].append(await bare("print(1)"))
            times["bare -S"].append(await bare("print(1)", "-S"))
            for name, sandbox in sandboxes.items():
                times[name].append(await sandboxed(sandbox, "print(1)"))
        print(f"print(1), {rounds} rounds in turn")
        for name, taken in times.items():
            print(f"  {name}: {shown(taken, times['bare'])}")
        if len(imports) == len(HEAVY):
            plain = [await bare(IMPORTING) for _ in range(3)]
            name, sandbox = list(sandboxes.items())[-1]
            warm = [await sandboxed(sandbox, IMPORTING) for _ in range(9)]
            print(
                f"importing pandas and scikit-learn: bare {statistics.median(plain):.2f} s; "
                f"{name}: {shown(warm, plain)}"
            )
        for name, sandbox in sandboxes.items():
            started = time.perf_counter()
            programs = [
                Program(f"import time; time.sleep(0.05); print({n})") for n in range(AT_ONCE)
            ]
            async with Stalls() as stalls:
                done = await asyncio.gather(*[sandbox.run(program) for program in programs])
            assert [got.stdout for got in done] == [f"{n}\n" for n in range(AT_ONCE)]
            seconds = time.perf_counter() - started
            print(
                f"{AT_ONCE} at once, {name}: {seconds:.2f} s, event loop stalled at most "
                f"{stalls.longest * 1e3:.0f} ms"
            )


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS, sys.argv[2:] or LEVELS))
