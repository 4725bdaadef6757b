"""An index of a run's trajectories: what a list of them shows and filters by, and where in its file
each one is.

A line is parsed only as far as the index needs it; ids, log-probs and texts are read when a
trajectory is opened or searched. So memory grows with the number of actions and not with the length
of what was said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from marl_plugins.commands.query import Query
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.files import json_value, open_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import inert
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.records.intervals import mean_of_known
from marl_plugins.engine.records.read import Filter, RunReader, records
from marl_plugins.engine.records.trajectory_record import check_schema, from_record


class ActionEntry(msgspec.Struct, gc=False):
    """The entry of an action in the index."""

    action: str
    role: str
    policy: str
    score: float | None = None
    reward: float | None = None
    advantage: float | None = None
    left_out: str | None = None


class TaskName(NamedTuple):
    """A task of which only the name is known."""

    id: str


def name_of(task: str, origin: str, forked: Sequence[str | int] | None) -> str:
    """Returns the name under which a task is shown: a trajectory that another run has made is told
    apart by its origin, and a fork by the action from which it goes on and its number."""
    of = origin or (f"fork {forked[1]} of {forked[0]}" if forked else "")
    return f"{task} ({of})" if of else task


class Metadata(msgspec.Struct, gc=False):
    """The metadata of a task, as the index knows them."""

    type: Any = None


class Entry(msgspec.Struct):
    """The entry of a trajectory in the index.

    Args:
        file: Number of the file that holds it, in `Index.files`.
        offset, length: Where its line is there, in bytes.
    """

    schema: int
    step: int
    task_id: str = msgspec.field(name="task")
    sample: int
    outcome: float | None
    agent_failure: str | None
    infrastructure_failure: str | None
    actions: list[ActionEntry]
    prompt: str
    seconds: float = 0.0
    metadata: Metadata = msgspec.field(default_factory=Metadata)
    origin: str = ""
    forked: tuple[str, int] | None = None
    outcomes: dict[str, float | None] = {}
    file: int = 0
    offset: int = 0
    length: int = 0

    @property
    def task(self) -> TaskName:
        return TaskName(self.task_id)

    @property
    def name(self) -> str:
        """The task as it is shown."""
        return name_of(self.task_id, self.origin, self.forked)

    @property
    def key(self) -> tuple[int, str, int]:
        """Step, task and sample, which name a trajectory of a run."""
        return self.step, self.name, self.sample

    @property
    def failure(self) -> str:
        """Kind of the failure of infrastructure or agents; empty without one."""
        return self.infrastructure_failure or self.agent_failure or ""

    @property
    def score(self) -> float | None:
        """Mean score of the actions that have one."""
        return mean_of_known(action.score for action in self.actions)

    @property
    def reward(self) -> float | None:
        """Mean reward of the actions that have one."""
        return mean_of_known(action.reward for action in self.actions)

    @property
    def lowest_advantage(self) -> float | None:
        """The lowest advantage of an action."""
        return min(
            (action.advantage for action in self.actions if action.advantage is not None),
            default=None,
        )

    @property
    def left_out(self) -> int:
        """Number of actions that were left out of training."""
        return sum(action.left_out is not None for action in self.actions)


PROMPT_CHARACTERS = 200
"""How much of a prompt the index keeps."""
DECODER = msgspec.json.Decoder(Entry)


def decode(line: bytes) -> Any:
    """Parses a line as an entry; as JSON values where msgspec's stricter parser refuses it (NaN,
    half a surrogate pair)."""
    try:
        return DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return json_value(line)


def entry_of(value: Any) -> Entry:
    """Makes an entry of a decoded line.

    Raises:
        ValueError: It is of something else, or of another schema.
    """
    if not isinstance(value, Entry):
        if not isinstance(value, dict):
            raise ValueError("expected an object")
        check_schema(value.get("schema"))
        value = msgspec.convert(value, Entry, strict=False)
    entry: Entry = value
    check_schema(entry.schema)
    entry.prompt = entry.prompt[:PROMPT_CHARACTERS]
    return entry


class RunIndex:
    """The trajectories of a run that are wanted.

    Args:
        query: Its pattern is looked for in a trajectory's prompt, answer, and what was shown, said,
            called, answered, explained.

    Raises:
        ConfigurationError: A file is missing or cannot be read, or lines of it are no trajectories.
    """

    def __init__(self, run: RunReader, query: Query):
        self.run = run
        self.files: list[Path] = []
        self.entries: list[Entry] = list(self._entries(query.wanted, query.find))

    def _entries(self, wanted: Filter, find: re.Pattern[str] | None) -> Iterator[Entry]:
        for number, (path, part) in enumerate(self.run.parts(wanted)):
            self.files.append(path)
            for record in records(path, entry_of, part, decode):
                entry = record.value
                entry.file, entry.offset, entry.length = (
                    number,
                    record.start,
                    record.end - record.start,
                )
                if wanted.has_trajectory(entry) and (find is None or self.contains(entry, find)):
                    yield entry

    def open(self, entry: Entry) -> Trajectory:
        """Reads the trajectory of an entry.

        Raises:
            ConfigurationError: The file is gone, its lines are elsewhere since the run was resumed,
                or the index has read less of the line than is wrong with it.
        """
        path = self.files[entry.file]
        try:
            with open_file(path) as file:
                file.seek(entry.offset)
                return from_record(json_value(file.read(entry.length)))
        except (OSError, ValueError) as error:
            got = (
                f"step {entry.step}, task {inert(entry.name)}, sample {entry.sample} cannot be "
                f"read: {inert(str(error))}"
            )
            raise ConfigurationError(Problem("records.form", at(file=path), got)) from None

    def contains(self, entry: Entry, find: re.Pattern[str]) -> bool:
        """Returns whether a text of the entry's trajectory contains a pattern."""
        return any(find.search(text) for text in texts_of(self.open(entry)))


def texts_of(trajectory: Trajectory) -> Iterator[str]:
    """Yields all texts of a trajectory that a person may look for."""
    yield from (trajectory.task.prompt, trajectory.answer or "", trajectory.detail)
    for action in trajectory.actions:
        yield from (action.text, action.explanation, *(text for _, text in action.shown))
        for result in action.tool_results:
            yield from (result.call, result.output)
    for result in trajectory.tool_results:
        yield from (result.call, result.output)
