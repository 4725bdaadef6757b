"""Data sets of reasoning-gym as cases and as tasks (extra `gym`): problems that a name and a seed make anew, each with a verifier.

    legs = GymCase("leg_counting")                         in a file of cases
    tasks = [gym_task("bf", n) for n in range(100)]        in a file of tasks, and gym_score(task, answer) in a grader

Partial credit is the library's: some verifiers give 0.01 to 0.25 to nonsense.
"""

from __future__ import annotations

import io
import json
import random
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.core.trajectory import Task


def gym_entry(name: str, seed: int, settings: dict[str, Any] | None = None) -> dict[str, Any]:
    """Returns a problem (`question`, `answer`, `metadata`) as JSON has it."""
    from reasoning_gym import create_dataset

    with redirect_stdout(io.StringIO()):  # the interpreter of `bf` prints a dot a problem
        entry = create_dataset(name, seed=seed, size=1, **(settings or {}))[0]
    found: dict[str, Any] = json.loads(json.dumps(entry, default=str))
    return found


def gym_entry_score(name: str, entry: dict[str, Any], answer: str | None) -> float:
    """Returns the score of an answer to a problem, in [0, 1]."""
    from reasoning_gym import get_score_answer_fn

    return min(max(float(get_score_answer_fn(name)(answer, entry)), 0.0), 1.0)


def gym_task(name: str, seed: int) -> Task:
    """Returns the task NAME-SEED; its label is all that the verifier needs."""
    entry = gym_entry(name, seed)
    return Task(f"{name}-{seed}", entry["question"], entry, {"type": name})


def gym_score(task: Task, answer: str | None) -> float:
    """Returns the score of an answer to such a task, in [0, 1]."""
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
