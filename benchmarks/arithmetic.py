"""Pure-Python and torch parts against upstream's own function or a peer's, in one run, outputs
asserted equal.

    python -m benchmarks.arithmetic [--trl PYTHON] [--verl FOLDER] [--runs 9]

`--trl` names the interpreter of a virtual environment with TRL 1.16
(`pip install trl==1.16.0 torch`), `--verl` a folder with verl 0.9.1
(`pip install --no-deps --target FOLDER verl==0.9.1`); without them their peers are left out. Each
figure is the median of the runs, with their minimum and maximum.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import importlib
import json
import os
import random
import statistics
import subprocess
import time
from collections.abc import Callable
from typing import Any

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"


def timed(function: Callable[[], Any], runs: int) -> list[float]:
    """Seconds of each run, after one that is not counted."""
    function()
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        function()
        times.append(time.perf_counter() - started)
    return times


def spread(times: list[float], unit: float = 1e3, name: str = "ms") -> str:
    return (
        f"{statistics.median(times) * unit:.3g} {name} "
        f"({min(times) * unit:.3g}-{max(times) * unit:.3g})"
    )


def returns(runs: int) -> None:
    """Returns at gamma 1, 32 rows of 16,384 tokens: ours and upstream's loop, alternating."""
    import torch

    from marl_plugins.core.advantages import masked_returns

    importlib.import_module(
        "marl_plugins.engine.processes.policy_actor"
    )  # makes upstream importable here
    upstream = importlib.import_module(
        "openrlhf.trainer.ppo_utils.experience_maker"
    ).RemoteExperienceMaker.get_cumulative_returns
    torch.set_num_threads(1)
    draw = torch.Generator().manual_seed(0)
    rewards = torch.randn(32, 16384, generator=draw)
    mask = torch.ones(32, 16384)
    a, b = masked_returns(rewards, mask, 1.0), upstream(None, rewards, mask, 1.0)
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-3)
    mine, theirs = [], []
    for _ in range(runs):
        mine += timed(lambda: masked_returns(rewards, mask, 1.0), 1)
        theirs += timed(lambda: upstream(None, rewards, mask, 1.0), 1)
    ratio = statistics.median(theirs) / statistics.median(mine)
    print(
        f"returns, gamma 1, 32x16384: {spread(mine)}; upstream's loop {spread(theirs)}; "
        f"{ratio:.0f}x"
    )


def gae(verl: str | None, runs: int) -> None:
    """GAE with 40 % of the tokens outside the mask: ours, upstream's loop (which takes them for
    steps), verl's; alternating."""
    import torch

    from marl_plugins.core.advantages import masked_gae

    maker = importlib.import_module(
        "openrlhf.trainer.ppo_utils.experience_maker"
    ).RemoteExperienceMaker
    sides: dict[str, Callable[..., Any]] = {"ours": masked_gae}
    sides["upstream's loop"] = lambda *given: maker.get_advantages_and_returns(None, *given)
    if verl:
        theirs = _verl_gae(verl)
        sides["verl"] = lambda values, rewards, *given: theirs(rewards, values, *given)
    torch.set_num_threads(1)
    for shape in ((64, 2048), (256, 4096)):
        draw = torch.Generator().manual_seed(0)
        values, rewards = torch.randn(2, *shape, generator=draw)
        holes, whole = (torch.rand(shape, generator=draw) < 0.6).float(), torch.ones(shape)
        for name, side in sides.items():
            mask = (
                whole if name == "upstream's loop" else holes
            )  # with holes it computes something else
            given = (values, rewards, mask, 1.0, 0.95)
            for a, b in zip(masked_gae(*given), side(*given), strict=True):
                torch.testing.assert_close(a[mask.bool()], b[mask.bool()], rtol=1e-5, atol=1e-5)
        times: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(runs):
            for name, side in sides.items():
                times[name] += timed(functools.partial(side, values, rewards, holes, 1.0, 0.95), 1)
        mine = statistics.median(times["ours"])
        found = [
            f"{name} {spread(took)}, {statistics.median(took) / mine:.1f}x"
            for name, took in times.items()
        ]
        print(f"GAE, {shape[0]}x{shape[1]}: {'; '.join(found)}")


def _verl_gae(folder: str) -> Callable[..., Any]:
    """verl's `compute_gae_advantage_return` from its file, without the whitening at its end: the
    package needs Ray and more."""
    import ast
    from pathlib import Path
    from types import SimpleNamespace

    import torch

    path = Path(folder) / "verl" / "trainer" / "ppo" / "core_algos.py"
    body = ast.parse(path.read_text(encoding="utf-8")).body
    (node,) = (
        n
        for n in body
        if isinstance(n, ast.FunctionDef) and n.name == "compute_gae_advantage_return"
    )
    node.decorator_list = []
    namespace: dict[str, Any] = {
        "torch": torch,
        "verl_F": SimpleNamespace(masked_whiten=lambda values, mask: values),
    }
    exec(compile(ast.Module([node], []), str(path), "exec"), namespace)
    function: Callable[..., Any] = namespace[node.name]
    return function


def conversations(number: int, turns: int) -> list[list[tuple[list[int], list[int], list[float]]]]:
    """Conversations of 400 prompt tokens, then 200 sampled and 200 observed tokens a turn, as
    deltas."""
    draw = random.Random(1)

    def ids(count: int) -> list[int]:
        return [draw.randrange(1000, 150000) for _ in range(count)]

    return [
        [
            (ids(400 if t == 0 else 200), ids(200), [-draw.random() for _ in range(200)])
            for t in range(turns)
        ]
        for _ in range(number)
    ]


def rows(trl: str | None, runs: int) -> None:
    """Turns to sequences: 64 conversations of 8 turns, 16 of 128; TRL's `_chain_to_sequences` in
    its own environment beside it."""
    from marl_plugins.core.rows import Row
    from marl_plugins.core.sequences import TokenSequence, sequences_of
    from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory

    def recorded(turns: list[tuple[list[int], list[int], list[float]]]) -> list[Row]:
        trajectory, before = Trajectory(Task("t", "p"), 0, step=1), None
        for number, (shown, sampled, logprobs) in enumerate(turns):
            generation = Generation(tuple(sampled), tuple(logprobs), "stop", "p", 0)
            before = Action(
                f"a.{number}", "a", "p", number, tuple(shown), generation, "", before=before
            )
            trajectory.actions = [*trajectory.actions, before]
        return [Row(trajectory, action, 1.0) for action in trajectory.actions]

    def as_theirs(sequence: TokenSequence) -> tuple[list[int], list[int], list[float]]:
        mask: list[int] = []
        logprobs: list[float] = []
        for row, start in zip(sequence.rows, sequence.starts, strict=True):
            generation = row.action.generation
            shown = start - len(mask)
            mask += [0] * shown
            mask += [1] * len(generation.ids)
            logprobs += [0.0] * shown
            logprobs += generation.logprobs
        return sequence.ids, mask, logprobs

    def all_of(made: list[list[Row]]) -> list[Any]:
        return [as_theirs(sequence) for mine in made for sequence in sequences_of(mine)]

    for number, turns in ((64, 8), (16, 128)):
        given = conversations(number, turns)
        made = [recorded(conversation) for conversation in given]
        mine = timed(functools.partial(all_of, made), runs)
        line = f"turns to sequences, {number}x{turns}: {spread(mine)}"
        if trl:
            theirs = _trl(trl, given, all_of(made), runs)
            line += (
                f"; TRL {spread(theirs)}; "
                f"{statistics.median(theirs) / statistics.median(mine):.1f}x"
            )
        print(line)


def _trl(python: str, given: Any, expected: Any, runs: int) -> list[float]:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump({"given": given, "expected": expected, "runs": runs}, file)
        file.flush()
        done = subprocess.run(
            [python, "-m", "benchmarks.trl_rows", file.name], capture_output=True, text=True
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def fan_out(runs: int) -> None:
    """Rollouts that do nothing: what a trajectory of one action costs, record, scheduling and
    limits included."""
    from benchmarks.plain_chat import PlainChat
    from marl_plugins.core.trajectory import Generation, Task
    from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow

    class Chat(PlainChat):
        def opening(self, messages: Any) -> tuple[int, ...]:
            return (1, 2, 3)

        def text(self, ids: Any) -> str:
            return "x"

    async def generate(call: Any) -> Generation:
        return Generation((4, 5), (-0.1, -0.2), "stop", "p", 0)

    async def workflow(task: Any, roles: Any, tools: Any) -> Any:
        return await roles.a(q=task.prompt)

    message = [{"role": "user", "content": "q"}]
    roles = {"a": RoleSpec("a", "p", lambda fields: message, Chat(), Sampling(1.0, 1.0, 8, 100))}  # type: ignore[arg-type]
    tasks = [Task(str(n), "q") for n in range(128)]

    async def everything() -> int:
        running = [
            run_workflow(
                workflow,
                t,
                s,
                step=1,
                run_seed=1,
                roles=roles,
                tools={},
                generate=generate,
                seconds=60,
            )
            for t in tasks
            for s in range(8)
        ]
        return len(await asyncio.gather(*running))

    per = [t / 1024 for t in timed(lambda: asyncio.run(everything()), runs)]
    print(f"no-op rollouts, 128x8: {spread(per, 1e6, 'us')} a trajectory")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trl", help="interpreter of an environment with TRL")
    parser.add_argument("--verl", help="folder with verl")
    parser.add_argument("--runs", type=int, default=9, help="of each")
    options = parser.parse_args()
    returns(options.runs)
    gae(options.verl, options.runs)
    rows(options.trl, options.runs)
    fan_out(options.runs)


if __name__ == "__main__":
    main()
