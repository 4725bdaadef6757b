"""A curriculum: the tasks of a step are drawn by how often they have been solved so far (arXiv
2502.12272, learnability).

    p = (s + 1) / (n + 2)        w = max(floor, 4 p (1 - p))        a task is drawn with a chance
        that grows with w

s of the n samples of a task have been solved; both are multiplied by `--curriculum.decay` whenever
the task is drawn again, because the policies change. A task that has not been drawn has p = 1/2 and
the largest weight, 1. What is always or never
solved teaches nothing: its weight falls to `--curriculum.floor`, never below, so that it comes
again. Tasks are drawn without replacement, as in Efraimidis and Spirakis (2006), by the run's seed
and the step. An outcome counts as so much of a success. A run has as many steps as without it, and
no passes over its data.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Mapping, Sequence

from marl_plugins import Row, Run, Step, StepPart, Task, between, derive_seed, hookimpl

EASY, HARD = 0.9, 0.1
"""Success rates from which a task counts as too easy, and up to which as too hard, in metrics."""


class Successes(dict[str, tuple[float, float]]):
    """Successes and samples of each task that has been drawn, by its id."""

    def rate(self, task: str) -> float:
        """Returns p, the success rate that is expected of a task."""
        s, n = self.get(task, (0.0, 0.0))
        return (s + 1.0) / (n + 2.0)

    def note(self, outcomes: Mapping[str, Sequence[float]], decay: float) -> None:
        """Adds the outcomes of a step's samples, by task."""
        for task, values in outcomes.items():
            s, n = self.get(task, (0.0, 0.0))
            self[task] = decay * s + math.fsum(values), decay * n + len(values)


def weight(p: float, floor: float) -> float:
    """Returns w."""
    return max(floor, 4.0 * p * (1.0 - p))


class StepOutcomes(StepPart, dict[str, list[float]]):
    """The outcomes of a step by task, once its rollout has ended."""

    step: Step

    async def rows(self, rows: Sequence[Row]) -> None:
        self.clear()
        for t in self.step.trajectories:
            if t.outcome is not None and not t.forked:
                self.setdefault(t.task.id, []).append(t.outcome)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "tasks by their success so far (--plugin marl_plugins.curriculum)"
    ).add_argument
    add(
        "--curriculum.floor",
        type=between(0.001, 1),
        default=0.1,
        help="lower bound of a task's weight 4 * p * (1 - p), where p is its success rate so far; "
        "1: all tasks weigh the same",
    )
    add(
        "--curriculum.decay",
        type=between(0, 1),
        default=0.5,
        help="factor of a task's earlier successes and samples whenever it is drawn again",
    )


@hookimpl
def marl_batch(
    tasks: Sequence[Task], run: Run, step: int, all_tasks: Sequence[Task]
) -> Sequence[Task]:
    rate, floor = run.state(Successes).rate, run.args.curriculum.floor
    draw = random.Random(derive_seed(run.args.train.seed, "curriculum", step))
    keys = [-math.log(1.0 - draw.random()) / weight(rate(task.id), floor) for task in all_tasks]
    return [all_tasks[n] for n in sorted(range(len(keys)), key=keys.__getitem__)[: len(tasks)]]


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    part = run.state(StepOutcomes)
    part.step = step
    return part


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    successes, outcomes = run.state(Successes), run.state(StepOutcomes)
    successes.note(outcomes, run.args.curriculum.decay)  # once the step has been trained
    rates = [successes.rate(task) for task in successes]
    counts = {
        "seen": len(rates),
        "easy": sum(p >= EASY for p in rates),
        "hard": sum(p <= HARD for p in rates),
    }
    metrics |= {f"curriculum/{name}": float(count) for name, count in counts.items()}


@hookimpl
def marl_state(run: Run) -> dict[str, tuple[float, float]]:
    return dict(run.state(Successes))


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Sequence[float]]) -> None:
    run.state(Successes).update({task: (s, n) for task, (s, n) in state.items()})
