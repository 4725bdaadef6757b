"""A journal of what a step has taken in, on disk before it is trained on: a step that is repeated
after a crash takes in the same.

    <ckpt.path>/swarm/step-000012.json      the run, by record its name and content, and the numbers
                                            of the step
    <ckpt.path>/swarm/step-000012-a1.json   what member a1 of a population has taken in

A run's saved state alone cannot do this: it is of the last saved step, and peers go on writing
meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from marl_plugins import json_value, replace_bytes


class Journal:
    """The records that each step has taken in.

    Args:
        folder: Of the run's checkpoints.
        run: The run's own id; entries of another one are not read.
        learner: The member of a population whose journal it is; empty: the run's.
    """

    def __init__(self, folder: Path, run: str, learner: str):
        self.folder = folder / "swarm"
        self.run = run
        self.learner = learner

    def read(self, step: int) -> tuple[dict[str, str], dict[str, float]] | None:
        """Returns the contents of the records that a step took in when it was first made, by name,
        and its numbers; None where it was not.

        Raises:
            OSError, ValueError: The file cannot be read, or is damaged.
        """
        path = self._path(step)
        if not path.exists():
            return None
        entry = json_value(path.read_bytes())
        return (entry["records"], entry["metrics"]) if entry["run"] == self.run else None

    def write(self, step: int, records: Mapping[str, str], metrics: Mapping[str, float]) -> None:
        """Writes what a step takes in.

        Raises:
            OSError: It cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        entry = {"run": self.run, "records": dict(records), "metrics": dict(metrics)}
        replace_bytes(self._path(step), json.dumps(entry).encode())

    def forget(self, last: int) -> None:
        """Removes what steps up to this one have taken in, whoever has.

        Raises:
            OSError: It cannot be removed.
        """
        for path in self.folder.glob("step-*.json"):
            if int(path.stem.split("-")[1]) <= last:
                path.unlink()

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step:06d}{'-' * bool(self.learner)}{self.learner}.json"
