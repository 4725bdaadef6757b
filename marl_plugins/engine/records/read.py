"""Reads the records of a run, whether it has finished, is in progress, was killed in the middle of
a line, or was resumed.

    records      the lines of one file, each as a value; a last line that is half written is left
                 out
    RunReader    a run's folder: metrics, ledgers, trajectories and actions, with a `Filter`

Lines are read one at a time, and those of other steps are not parsed, so a long run needs no more
memory than a short one.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value, open_file
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.problems import Problem, at, first_of
from marl_plugins.core.trajectory import Action, Trajectory
from marl_plugins.engine.records.trajectory_record import from_record

METRICS, LEDGER = "metrics.jsonl", "ledger.jsonl"
TRAJECTORIES, EVALUATIONS, LAST_EVALUATION = (
    "trajectories.jsonl",
    "evaluations.jsonl",
    "evaluation-last.jsonl",
)
ONE_PER_STEP = (METRICS, LEDGER)
"""The files in which a step has one line."""
REPORT = "report.md"
"""Written when a run has finished; a resumed run removes it."""
EXPECTED = "expected a run's output folder, or a file of its trajectories"
REPAIR = "remove that line, or restore the file from a copy"
STEP = re.compile(rb'\{(?:"schema": \d+, )?"step": (\d+)[,}]')
"""How a line of a run begins; the step of any other is known once it is parsed."""

Steps = tuple[int, int | None]
"""The first and the last step; None for no last one."""
ALL_STEPS: Steps = (0, None)
T = TypeVar("T")


class Record(NamedTuple, Generic[T]):
    """One line of a file: its place as FILE:NUMBER, the offset at which the next line begins, its
    step, what it says, and the offset at which it begins."""

    place: str
    end: int
    step: int
    value: T
    start: int = 0


class ActionLike(Protocol):
    """An action as a filter sees it: an `Action`, or an index's entry of one."""

    @property
    def role(self) -> str: ...
    @property
    def policy(self) -> str: ...
    @property
    def left_out(self) -> str | None: ...
    @property
    def score(self) -> float | None: ...
    @property
    def advantage(self) -> float | None: ...


class TaskLike(Protocol):
    """A task as a filter sees it."""

    @property
    def id(self) -> str: ...


class TrajectoryLike(Protocol):
    """A trajectory as a filter sees it: a `Trajectory`, or an index's entry of one."""

    @property
    def task(self) -> TaskLike: ...
    @property
    def sample(self) -> int: ...
    @property
    def outcome(self) -> float | None: ...
    @property
    def agent_failure(self) -> str | None: ...
    @property
    def infrastructure_failure(self) -> str | None: ...
    @property
    def actions(self) -> Sequence[ActionLike]: ...


EVALUATION = "evaluation"
"""The reason of an evaluation's actions, which records do not write."""


def reason_left_out(action: ActionLike) -> str | None:
    """Returns why an action was not trained on; an evaluation's were never meant to be. None for a
    trained one."""
    return action.left_out or (None if action.advantage is not None else EVALUATION)


@dataclass(frozen=True)
class Filter:
    """A filter of trajectories and actions of a run; the default selects all of training.

    Args:
        steps: First and last step, both included.
        split: `train`, or `eval` for what is kept of the evaluations (docs/metrics.md).
        task: Id of the task.
        outcome: Lowest and highest outcome, both included; a trajectory without an outcome is then
            not wanted.
        failure: Kind of the agents' or of the infrastructure's failure.
        sample: Number of the sample of its task, from 0.
        received: Whether trajectories of other runs, which entered by `marl_exchange`, are wanted
            too.
        role, policy, left_out: Of an action; `left_out` is the ledger's reason. A trajectory is
            wanted if one action is.
        score, advantage: Of an action: lowest and highest, both included; an action without one is
            then not wanted.
    """

    steps: Steps = ALL_STEPS
    split: Literal["train", "eval"] = "train"
    task: str | None = None
    outcome: tuple[float, float] | None = None
    failure: str | None = None
    role: str | None = None
    policy: str | None = None
    left_out: str | None = None
    sample: int | None = None
    received: bool = False
    score: tuple[float, float] | None = None
    advantage: tuple[float, float] | None = None

    def has_step(self, step: int) -> bool:
        return self.steps[0] <= step and (self.steps[1] is None or step <= self.steps[1])

    def has_action(self, action: ActionLike) -> bool:
        conditions = (
            (self.role, action.role),
            (self.policy, action.policy),
            (self.left_out, reason_left_out(action)),
        )
        return (
            all(value is None or value == actual for value, actual in conditions)
            and _within(self.score, action.score)
            and _within(self.advantage, action.advantage)
        )

    def has_trajectory(self, trajectory: TrajectoryLike) -> bool:
        return (
            (self.task is None or self.task == trajectory.task.id)
            and (self.sample is None or self.sample == trajectory.sample)
            and self.failure in (None, trajectory.agent_failure, trajectory.infrastructure_failure)
            and _within(self.outcome, trajectory.outcome)
            and (not self.of_actions or any(map(self.has_action, trajectory.actions)))
        )

    @property
    def of_actions(self) -> bool:
        """Returns whether anything is asked of actions; a trajectory without any is wanted only if
        not."""
        asked = self.role, self.policy, self.left_out, self.score, self.advantage
        return any(value is not None for value in asked)

    @cached_property
    def texts(self) -> tuple[bytes, ...]:
        """Returns what a line must contain to be wanted, so that others need not be parsed."""
        left_out = None if self.left_out == EVALUATION else self.left_out
        values = (self.task, self.failure, self.role, self.policy, left_out)
        return tuple(
            json.dumps(value).encode() for value in values if value is not None and value.isascii()
        )


EVERYTHING = Filter(ALL_STEPS)


def _within(bounds: tuple[float, float] | None, value: float | None) -> bool:
    """Returns whether a value is within bounds, both included; nothing is asked without bounds."""
    return bounds is None or (value is not None and bounds[0] <= value <= bounds[1])


def records(
    path: Path,
    form: Callable[[Any], T],
    selection: Filter = EVERYTHING,
    decode: Callable[[bytes], Any] | None = None,
) -> Iterator[Record[T]]:
    """Yields the records of a file in order; their steps never decrease.

    Args:
        form: Makes the value of a record; raises ValueError, KeyError, TypeError or AttributeError
            where it cannot.
        decode: Parses a line that begins with its step into something other than a dict, for
            `form`; raises ValueError.
        selection: Records of other steps are left out, without a check of their content.

    Raises:
        ConfigurationError: At the end, names all lines that are damaged, recorded twice, or of
            another form. A damaged last line is none: a run that was killed, is in progress, or
            whose disk was full leaves a part of one.
    """
    problems, broken, last, seen = list[Problem](), list[Problem](), 0, set[int]()
    for number, end, line in _lines(path):
        place = f"{path}:{number}"
        problems, broken = [*problems, *broken], []
        try:
            stated = STEP.match(line)
            value: Any = None
            if stated is None:
                value = _object(line)
                step = _step_of(value)
            else:
                step = int(stated[1])
                if _concerns(line, step, selection):
                    value = (decode or _object)(line)
        except ValueError as error:
            got = f"not a record of a run: {error}"
            broken = [Problem("records.damaged", at(line=place), got, fix=REPAIR)]
            continue
        if step < last:
            got = f"step {step} follows step {last}: this line or the one before it is damaged"
            problems.append(Problem("records.order", at(line=place), got, fix=REPAIR))
            continue
        if step > last:
            last, seen = step, set()
        same = step if path.name in ONE_PER_STEP else hash(line.rstrip())
        if same in seen:
            got = f"step {step} is recorded twice"
            problems.append(Problem("records.twice", at(line=place), got, fix=REPAIR))
        elif value is not None and selection.has_step(step):
            try:
                yield Record(place, end, step, form(value), end - len(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                why = error if isinstance(error, ValueError) else f"it has another form: {error!r}"
                problems.append(Problem("records.form", at(line=place), f"cannot be read: {why}"))
        seen.add(same)
    if problems:
        raise ConfigurationError(first_of(problems, path))


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Number, end and content of the lines of a file that are not blank."""
    end = 0
    try:
        with open_file(path) as file:
            for number, line in enumerate(file, 1):
                end += len(line)
                if line.strip():
                    yield number, end, line
    except OSError as error:
        got = error.strerror or str(error)
        raise ConfigurationError(
            Problem("records.unreadable", at(file=path), got, fix=EXPECTED)
        ) from None


def _concerns(line: bytes, step: int, selection: Filter) -> bool:
    """Returns whether a line may be one that is wanted."""
    return selection.has_step(step) and all(text in line for text in selection.texts)


def _object(line: bytes) -> dict[str, Any]:
    value = json_value(line)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {reprlib.repr(value)}")
    return value


def _step_of(value: Mapping[str, Any]) -> int:
    step = value.get("step")
    if (
        isinstance(step, bool)
        or not isinstance(step, int | float)
        or not 0 <= step < 2**53
        or step != int(step)
    ):
        raise ValueError(f"expected the number of a step as `step`, got {reprlib.repr(step)}")
    return int(step)


class RunReader:
    """Reads the records of one run.

    Args:
        source: The run's output folder, or one of its files of trajectories, which is then read in
            place of all others.
    """

    def __init__(self, source: Path):
        self.folder = source if source.is_dir() else source.parent
        self.file = None if source.is_dir() else source

    def metrics(self) -> list[dict[str, Any]]:
        """Returns the metrics of all finished steps: numbers, or None for one that was not finite.
        Step 0 is the evaluation before the first. Without a file there are none.

        Raises:
            ConfigurationError: The file cannot be read, or a line of it is no record.
        """
        path = self.folder / METRICS
        return [record.value for record in records(path, dict)] if path.exists() else []

    def has_finished(self, policies: Iterable[str], steps: int) -> bool:
        """Returns whether the run has been trained to the end of so many steps, the weights of the
        policies saved, and the report written.

        Raises:
            ConfigurationError: As `metrics`.
        """
        if not (self.folder / REPORT).is_file() or not all(
            (self.folder / policy).is_dir() for policy in policies
        ):
            return False
        metrics = self.metrics()
        return bool(metrics) and int(metrics[-1]["step"]) >= steps

    def ledgers(self) -> Iterator[Ledger]:
        """Yields the ledger of every step. Without a file there are none.

        Raises:
            ConfigurationError: The file cannot be read, or a line of it is no ledger.
        """
        path = self.folder / LEDGER
        if path.exists():
            yield from (record.value for record in records(path, Ledger.from_record))

    def trajectories(self, selection: Filter = EVERYTHING) -> Iterator[Trajectory]:
        """Yields the trajectories that are wanted, by step and in the order of their tasks.

        Raises:
            ConfigurationError: A file is missing or cannot be read, or lines of it are no
                trajectories.
        """
        for record in self.recorded(selection):
            yield record.value

    def actions(self, selection: Filter = EVERYTHING) -> Iterator[tuple[Trajectory, Action]]:
        """Yields the actions that are wanted, each with its trajectory; raises as
        `trajectories`."""
        for trajectory in self.trajectories(selection):
            yield from (
                (trajectory, action)
                for action in trajectory.actions
                if selection.has_action(action)
            )

    def recorded(self, selection: Filter = EVERYTHING) -> Iterator[Record[Trajectory]]:
        """Yields the trajectories that are wanted with the places of their lines; raises as
        `trajectories`."""
        for path, part in self.parts(selection):
            candidates = records(path, from_record, part)
            yield from (
                record
                for record in candidates
                if selection.has_trajectory(record.value)
                and (selection.received or not record.value.origin)
            )

    def parts(self, selection: Filter) -> Iterator[tuple[Path, Filter]]:
        """Yields the files with what is wanted, and what is wanted of each.

        All trajectories of the last evaluation are in a file of its own, and some of them in the
        other.
        """
        last = self.folder / LAST_EVALUATION
        if self.file or selection.split == "train":
            yield self.file or self.folder / TRAJECTORIES, selection
            return
        step = (
            next((record.step for record in records(last, dict)), None) if last.exists() else None
        )
        first, until = selection.steps
        before = until if step is None else step - 1 if until is None else min(until, step - 1)
        yield self.folder / EVALUATIONS, replace(selection, steps=(first, before))
        if step is not None:
            yield last, selection
