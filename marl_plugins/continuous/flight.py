"""The tasks that have been begun and not taken, and which of them a step takes."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_plugins import Step, StepPart, Task, Trajectory, all_of


@dataclass(eq=False)
class TaskInFlight:
    """All samples of a task.

    Args:
        turn: The step whose turn the task is.
        begun: The rollout in which it was begun.
        work: Its samples.
    """

    task: Task
    turn: int
    begun: int
    work: asyncio.Future[list[Trajectory]]


class FlightLengths:
    """The sampled tokens of a role's actions, of the tasks that were begun in one rollout."""

    def __init__(self) -> None:
        self.actions, self.tokens = Counter[bool](), Counter[bool]()
        """By whether the task was taken at once."""

    def bias(self) -> float | None:
        """Returns the mean length of what was taken at once over that of all; None where nothing
        was, or nothing is long."""
        if not self.actions[True] or not self.tokens.total():
            return None
        return self.tokens[True] / self.actions[True] * self.actions.total() / self.tokens.total()


@dataclass
class Flight:
    """The tasks that have been begun and not taken, in the order in which they were begun."""

    groups: list[TaskInFlight] = field(default_factory=list)
    lengths: dict[int, dict[str, FlightLengths]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(FlightLengths))
    )
    """By the rollout in which tasks were begun, then by role."""
    saved: dict[str, Any] = field(default_factory=lambda: {"waiting": [], "early": [], "taken": []})
    """As of the end of the last rollout, tasks as (turn, id): those that run on, those of the next
    step that have been begun, and by rollout those that were taken and may not be trained yet."""

    def restore(self, state: Mapping[str, Any]) -> None:
        self.saved = dict(state)

    async def close(self) -> None:
        """Ends what is still running."""
        works = [group.work for group in self.groups]
        for work in works:
            work.cancel()
        await asyncio.gather(*works, return_exceptions=True)


class ContinuousPart(StepPart):
    """Takes the tasks of a step.

    Args:
        samples: Trajectories of a task.
        ahead: Tasks of the next step that begin early.
        late: Rollouts after its own by which a task is taken.
        queue: Rollouts that wait to be trained.
    """

    def __init__(self, step: Step, flight: Flight, samples: int, ahead: int, late: int, queue: int):
        self.step, self.flight, self.samples = step, flight, samples
        self.ahead, self.late, self.queue = ahead, late, queue
        self.early: list[Task] = []
        """Tasks of the next step that this rollout has begun."""
        self.found: dict[str, float] = {}

    def source(self) -> AsyncGenerator[Sequence[Trajectory], None]:
        return self._groups()

    async def _groups(self) -> AsyncGenerator[Sequence[Trajectory], None]:
        taken = list[TaskInFlight]()
        again = self._taken_before()
        waiting = self._begin_again(again) if again else self._begin()
        mine = set(waiting) if again else self._due(waiting)
        count = len(again) or len(self.step.planned(self.step.number))
        while len(taken) < count:
            complete = [group for group in waiting if group.work.done()]
            room = count - len(taken) - len(mine)
            ready = next((group for group in complete if group in mine or room > 0), None)
            if ready is None:
                running = [g.work for g in (waiting if room > 0 else mine) if not g.work.done()]
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                continue
            waiting.remove(ready)
            mine.discard(ready)
            taken.append(ready)
            yield ready.work.result()
        self._take(taken, again=bool(again))

    def _taken_before(self) -> list[tuple[int, str]]:
        """The tasks that this rollout had when it was made before, where that was lost."""
        saved: Iterable[Any] = self.flight.saved["taken"]
        return next(
            (
                [(turn, name) for turn, name in tasks]
                for number, tasks in saved
                if number == self.step.number
            ),
            [],
        )

    def _begin_again(self, tasks: Sequence[tuple[int, str]]) -> list[TaskInFlight]:
        return [
            self._group(self._task(turn, name), turn, place)
            for place, (turn, name) in enumerate(tasks)
        ]

    def _begin(self) -> list[TaskInFlight]:
        """Begin what a saved step has left, the tasks of this step, then some of the next."""
        flight, number = self.flight, self.step.number
        saved = flight.saved
        left = (
            []
            if flight.groups
            else [(turn, self._task(turn, name)) for turn, name in saved["waiting"]]
        )
        own = [
            (number, task)
            for task in self.step.planned(number)
            if [number, task.id] not in saved["early"]
        ]
        known = {g.task.id for g in flight.groups} | {task.id for _, task in (*left, *own)}
        self.early = [task for task in self.step.planned(number + 1) if task.id not in known][
            : self.ahead
        ]
        todo = [*left, *own, *((number + 1, task) for task in self.early)]
        flight.groups += [self._group(task, turn, place) for place, (turn, task) in enumerate(todo)]
        return list(flight.groups)

    def _task(self, turn: int, name: str) -> Task:
        return next(task for task in self.step.planned(turn) if task.id == name)

    def _group(self, task: Task, turn: int, place: int) -> TaskInFlight:
        samples = all_of(
            self.step.trajectory(task, place, sample) for sample in range(self.samples)
        )
        return TaskInFlight(task, turn, self.step.number, asyncio.ensure_future(samples))

    def _due(self, waiting: Iterable[TaskInFlight]) -> set[TaskInFlight]:
        """The groups that this rollout takes, whenever they are complete."""
        number = self.step.number
        following = {task.id for task in self.step.planned(number + 1)}
        return {
            g
            for g in waiting
            if g.begun <= number - self.late or (g.turn <= number and g.task.id in following)
        }

    def _take(self, taken: Sequence[TaskInFlight], again: bool) -> None:
        """Note what the rollout has taken, now that it is complete."""
        flight, number = self.flight, self.step.number
        flight.groups = [group for group in flight.groups if group not in taken]
        self._note_lengths(taken)
        late = sum(group.begun < number for group in taken)
        self.found |= {
            "continuous/late": late / len(taken),
            "continuous/running": float(len(flight.groups)),
        }
        if again:
            return
        names = [[group.turn, group.task.id] for group in taken]
        kept = [each for each in flight.saved["taken"] if each[0] >= number - self.queue]
        flight.saved = {
            "waiting": [[group.turn, group.task.id] for group in flight.groups],
            "early": [[number + 1, task.id] for task in self.early],
            "taken": [*kept, [number, names]],
        }

    def _note_lengths(self, taken: Sequence[TaskInFlight]) -> None:
        number = self.step.number
        for group in taken:
            for action in (a for t in group.work.result() for a in t.actions):
                lengths = self.flight.lengths[group.begun][action.role]
                lengths.actions[group.begun == number] += 1
                lengths.tokens[group.begun == number] += len(action.generation.ids)
        complete = self.flight.lengths.pop(number - self.late, {})
        biases = {role: lengths.bias() for role, lengths in sorted(complete.items())}
        self.found |= {
            f"role/{role}/first_length": bias for role, bias in biases.items() if bias is not None
        }

    def metrics(self) -> Mapping[str, float]:
        return self.found

    def record(self) -> object:
        return self.found

    def restore(self, record: Mapping[str, float]) -> None:
        self.found = dict(record)
