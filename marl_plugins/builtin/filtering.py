"""Dynamic filtering: a task whose samples teach nothing is replaced by the next one (DAPO, arXiv
2503.14476, 3.2). Built in.

    openrlhf train --recipe R --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0 1

A task is kept where the mean outcome of its samples lies strictly within the range, as in upstream
(samples_generator.py:168-179); where a sample has no outcome nothing is known, and it is kept. With
`--filtering.by ROLE` the mean is that of the scores of a role's actions, or of the role's outcome
where no action is scored.

Tasks are taken in the order of the data, which goes on where the step before has stopped, and
begins anew, in another order, when it is through. A replacement is begun as soon as a task is known
to teach nothing. Whenever that is, a step rolls out the shortest piece of the data in which as many
tasks are kept as a batch has, so its tasks do not depend on what arrives first. It has at most
`--filtering.most` times a batch, and no task twice; then it trains on what is there. What is left
out is in the ledger as `filtered`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

from marl_plugins import applies_if, hookimpl
from marl_plugins.core.exchange import Exchange
from marl_plugins.core.options import at_least
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.tasks import epoch_order
from marl_plugins.core.run import Run
from marl_plugins.core.steps import Step, StepPart
from marl_plugins.core.trajectory import Task, Trajectory

REASON = "filtered"
OUTCOME = "outcome"
ONLY_WITH = ("algo.dynamic_filtering_range", "filtering.by", "filtering.most")


def is_enabled(run: Run) -> bool:
    """Returns whether tasks are filtered."""
    return bool(run.args.algo.dynamic_filtering_enable)


class TaskStream:
    """The training tasks in the order in which steps take them, one pass after the other."""

    def __init__(self) -> None:
        self.position: int | None = None
        """Number of tasks that have been taken; None before the first step."""
        self.tasks: Sequence[Task] = ()
        self.seed = 0

    def take(self, count: int, without: Iterable[str]) -> list[Task]:
        """Returns the next tasks, but those of these ids; fewer where there are no others."""
        taken, known = list[Task](), set(without)
        while len(taken) < count and len(known) < len(self.tasks):
            task = self._next()
            if task.id not in known:
                known.add(task.id)
                taken.append(task)
        return taken

    def _next(self) -> Task:
        number, place = divmod(self.position or 0, len(self.tasks))
        self.position = (self.position or 0) + 1
        return self.tasks[epoch_order(len(self.tasks), self.seed, number)[place]]


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "tasks that teach nothing (with --algo.dynamic_filtering_enable)"
    )
    group.add_argument(
        "--filtering.by",
        default=OUTCOME,
        metavar="ROLE",
        help="whose scores have to lie within the range, as the mean over a task's samples",
    )
    group.add_argument(
        "--filtering.most",
        type=at_least(1),
        default=4,
        metavar="N",
        help="batches that a step rolls out at most",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    if not is_enabled(run):
        return run.idle_flags(ONLY_WITH, "algo.dynamic_filtering_enable")
    problems, by = list[Problem](), run.args.filtering.by
    if by != OUTCOME and by not in run.recipe.roles:
        got, fix = f"there is no role {by!r}", meant(by, [*run.recipe.roles, OUTCOME])
        problems.append(Problem("filtering.no_role", at(flag="filtering.by"), got, fix=fix))
    low, high = run.args.algo.dynamic_filtering_range
    if low >= 1 or high <= 0 or low >= high:
        got = f"{low:g} to {high:g}: no mean of scores, which lie in [0, 1], is strictly within"
        fix = "give the lower bound first, and a range that holds some of them, as in 0 1"
        problems.append(
            Problem("filtering.range", at(flag="algo.dynamic_filtering_range"), got, fix=fix)
        )
    return problems


@hookimpl
@applies_if(is_enabled)
def marl_batch(
    tasks: Sequence[Task], run: Run, step: int, all_tasks: Sequence[Task]
) -> Sequence[Task]:
    stream = run.state(TaskStream)
    stream.tasks, stream.seed = all_tasks, run.args.train.seed
    if stream.position is None:  # of a run that was not filtered before: where it is in the data
        stream.position = (step - 1) * len(tasks)
    return stream.take(len(tasks), ())


class FilteringPart(StepPart):
    """Adds a task to the step for each that teaches nothing."""

    def __init__(self, run: Run, step: Step):
        self.run, self.step = run, step
        self.most = run.args.filtering.most * len(step.tasks)
        self.filtered = 0

    def completed(self, trajectories: Sequence[Trajectory]) -> Sequence[Task]:
        if not teaches_nothing(trajectories, self.run):
            return ()
        self.filtered += 1
        stream = self.run.state(TaskStream)
        return (
            stream.take(1, [t.id for t in self.step.tasks])
            if len(self.step.tasks) < self.most
            else ()
        )

    def metrics(self) -> Mapping[str, float]:
        count = len(self.step.tasks)
        return {"filtering/tasks": float(count), "filtering/kept": (count - self.filtered) / count}


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart | None:
    return FilteringPart(run, step) if is_enabled(run) else None


def teaches_nothing(samples: Sequence[Trajectory], run: Run) -> bool:
    """Returns whether the mean score of a task's samples does not lie strictly within the range."""
    scores, (low, high) = (
        [score(t, run.args.filtering.by) for t in samples],
        run.args.algo.dynamic_filtering_range,
    )
    known = [each for each in scores if each is not None]
    return len(known) == len(scores) > 0 and not low < fmean(known) < high


def score(trajectory: Trajectory, by: str) -> float | None:
    """Returns the outcome, or the mean score of a role's actions: 0 where the agents failed, None
    where it is not known."""
    if by == OUTCOME:
        return trajectory.outcome
    mine = [a.score for a in trajectory.actions if a.role == by]
    known = [each for each in mine if each is not None]
    return fmean(known) if known and len(known) == len(mine) else trajectory.outcome_of(by)


@hookimpl
@applies_if(is_enabled)
def marl_exchange(
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Sequence[Trajectory]:
    groups: dict[str, list[Trajectory]] = {}
    for t in trajectories:
        if t.is_original:
            groups.setdefault(t.task.id, []).append(t)
    nothing = {task for task, samples in groups.items() if teaches_nothing(samples, run)}
    kept = []
    for t in trajectories:
        if t.origin or t.task.id not in nothing:
            kept.append(t)
        else:
            exchange.leave_out(t, REASON)
    return kept


@hookimpl
def marl_state(run: Run) -> int | None:
    return run.state(TaskStream).position


@hookimpl
def marl_restore(run: Run, state: int) -> None:
    run.state(TaskStream).position = state
