"""Data sets of reasoning-gym as cases and as tasks (extra `gym`): problems that a name and a seed
make anew, each with a verifier.

    legs = GymCase("leg_counting")                         in a file of cases
    tasks = [gym_task("bf", n) for n in range(100)]        in a file of tasks, and gym_score(task,
        answer) in a grader

Partial credit is the library's: some verifiers give 0.01 to 0.25 to nonsense. Some evaluate an
answer as Python and some can be kept busy for ever, so a verifier runs in the sandbox
(gym_verifier.py), with limits; an answer that reaches one is worth nothing.
"""

from __future__ import annotations

import asyncio
import functools
import io
import json
import os
import random
import threading
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from marl_plugins.builtin.cases.gym_verifier import SCORE
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import Task
from marl_plugins.sandbox import Limits, OnDemandSandbox, Program
from marl_plugins.sandbox.section import SandboxConfig

SOURCE = Path(__file__).with_name("gym_verifier.py").read_text()
MOST_CHARS = 20_000
"""Characters of the longest answer that is looked at; the longest labels have a tenth of that."""
LIMITS = Limits(seconds=4, cpu_seconds=2, memory_mb=1024, file_mb=1, disk_mb=1, output_mb=1)


def gym_entry(name: str, seed: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a problem (`question`, `answer`, `metadata`) as JSON has it; where that loses
    something, with `as_made`: Python's own words for it."""
    from reasoning_gym import create_dataset

    with redirect_stdout(io.StringIO()):  # the interpreter of `bf` prints a dot a problem
        entry = create_dataset(name, seed=seed, size=1, **(settings or {}))[0]
    plain: dict[str, Any] = json.loads(json.dumps(entry, default=str))
    own, as_json = (
        {k: v for k, v in made["metadata"].items() if k != "difficulty"} for made in (entry, plain)
    )
    if own != as_json:  # tuples, and keys that are no texts, which its verifier may compare
        plain["as_made"] = repr(entry)
    return plain


def gym_entry_score(name: str, entry: dict[str, Any], answer: str | None) -> float:
    """Returns the score of an answer to a problem, in [0, 1]; blocks for some hundredths of a
    second.

    Raises:
        InfrastructureFailure: The verifier cannot be run; no answer is to blame for that.
    """
    if answer is not None and len(answer) > MOST_CHARS:
        return 0.0
    loop, sandbox = _apart(os.getpid())
    return asyncio.run_coroutine_threadsafe(_verified(sandbox, name, entry, answer), loop).result()


async def _verified(
    sandbox: OnDemandSandbox, name: str, entry: dict[str, Any], answer: str | None
) -> float:
    stdin = json.dumps([name, answer, entry]).encode()
    completed = await sandbox.sandbox.run(
        Program(SOURCE, stdin=stdin, wanted=(SCORE,), limits=LIMITS, merged=True)
    )
    try:
        return min(max(float(completed.files[SCORE]), 0.0), 1.0)
    except (KeyError, ValueError):
        if completed.status in ("finished", "failed"):  # only a limit keeps it from leaving a score
            raise InfrastructureFailure(
                "grader", f"no verifier of {name}: {completed.stdout}"
            ) from None
        return 0.0


@functools.cache
def _apart(process: int) -> tuple[asyncio.AbstractEventLoop, OnDemandSandbox]:
    """Returns where verifiers run, and its event loop, for this process: a fork has no threads of
    its parent. Cases and graders ask from any thread, with and without a loop of their own, and
    share one that has imported the library."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verifiers", daemon=True).start()
    return loop, OnDemandSandbox(SandboxConfig(imports=["reasoning_gym", "sympy"]))


def gym_task(name: str, seed: int) -> Task:
    """Returns the task NAME-SEED; its label is all that the verifier needs."""
    entry = gym_entry(name, seed)
    return Task(f"{name}-{seed}", entry["question"], entry, {"type": name})


def gym_score(task: Task, answer: str | None) -> float:
    """Returns the score of an answer to such a task, in [0, 1]; see `gym_entry_score`."""
    return gym_entry_score(task.metadata["type"], task.label, answer)


@dataclass(frozen=True)
class GymCase:
    """A case of a data set, whose prompt has the field `problem`.

    Args:
        name: Of the data set.
        settings: Of the data set, as its configuration has them.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    def case(self, rng: random.Random, given: Any) -> dict[str, Any]:
        return gym_entry(self.name, rng.getrandbits(31), self.settings)

    def prompt(self, case: dict[str, Any]) -> dict[str, str]:
        return {"problem": case["question"]}

    def verify(self, value: Any, case: dict[str, Any]) -> float:
        return gym_entry_score(self.name, case, None if value is None else str(value))
