"""Rollouts that wait to be trained, as a file of a saved step (`--train.async_enable`).

    <ckpt.path>/waiting/step<N>.jsonl    saved with step N: one rollout a line, of the steps after N

They are kept as they were sampled, whole, because the weights that sampled them are in no later
step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from marl_plugins.core.files import json_value, read_bytes, replace_bytes
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.engine.runtime.step import RunningStep

FOLDER = "waiting"


class RolloutRecord(TypedDict):
    """The rollout of a step, as JSON values: what parts have recorded of it, by their plugins'
    labels, and each trajectory with its task's place."""

    step: int
    tasks: list[str]
    """Ids of the step's tasks, in its order."""
    seconds: dict[str, float]
    parts: dict[str, object]
    trajectories: list[tuple[int, dict[str, object]]]


def file_of(folder: Path, step: int) -> Path:
    """Returns where the rollouts are that waited when a step was saved."""
    return folder / FOLDER / f"step{step}.jsonl"


def save_waiting(folder: Path, step: int, waiting: Mapping[int, RunningStep]) -> list[Path]:
    """Writes the rollouts that wait after a step, and returns the file; none where none waits.

    Raises:
        OSError: It cannot be written.
    """
    if not waiting:
        return []
    path = file_of(folder, step)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_record(rollout)) for _, rollout in sorted(waiting.items())]
    replace_bytes(path, "".join(f"{line}\n" for line in lines).encode())
    return [path]


def read_waiting(
    folder: Path,
    step: int,
    files: Collection[str],
    planned: Collection[int],
    known: Mapping[str, Task],
    begin: Callable[[int], RunningStep],
) -> dict[int, RunningStep]:
    """Returns the rollouts that waited when a step was saved, but those of which this run has not
    the step or a task: they are made anew.

    Args:
        files: Those that the step's manifest names; another one is of another run, or was never
            completed.
        planned: The run's steps.
        known: Its training tasks by id.
        begin: Makes a step whose rollout has not begun.
    """
    path, rollouts = file_of(folder, step), {}
    if str(path.relative_to(folder)) not in files:
        return {}
    for line in read_bytes(path).splitlines():
        record: RolloutRecord = json_value(line)
        if record["step"] not in planned or not known.keys() >= set(record["tasks"]):
            continue
        rollout = rollouts[record["step"]] = begin(record["step"])
        rollout.seconds |= record["seconds"]
        tasks = [known[name] for name in record["tasks"]]
        trajectories = [_trajectory(place, each, tasks) for place, each in record["trajectories"]]
        rollout.put_back(tasks, trajectories, record["parts"])
    return rollouts


def lag_of(rollout: RunningStep, done: int, versions: Mapping[str, int]) -> int:
    """Returns how many versions old the oldest row of a rollout will be when it is trained.

    Args:
        done: The last step that has been trained.
        versions: Those of the policies that are trained, after that step.
    """
    sampled = (a.generation for t in rollout.trajectories for a in t.actions)
    oldest = max(
        (versions[g.policy] - g.version for g in sampled if g.policy in versions), default=0
    )
    return oldest + rollout.number - done - 1


def _record(rollout: RunningStep) -> RolloutRecord:
    labels = rollout.session.plan.plugins.labels
    return {
        "step": rollout.number,
        "tasks": [task.id for task in rollout.tasks],
        "seconds": rollout.seconds,
        "parts": {
            labels[name]: kept
            for name, part in rollout.parts.items()
            if (kept := part.record()) is not None
        },
        "trajectories": [(t.place, to_record(t)) for t in rollout.trajectories],
    }


def _trajectory(place: int, record: Mapping[str, object], tasks: Sequence[Task]) -> Trajectory:
    """A trajectory of a record; its task is the run's own, which has more than a record says."""
    return replace(from_record(record), place=place, task=tasks[place])
