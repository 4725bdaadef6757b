"""A plan, as plugins see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task


class RunPlan(Protocol):
    """A plan while it is made: the run, and the tasks that it reads."""

    @property
    def run(self) -> Run:
        """Returns the run, as far as it is known."""

    def tasks(self, split: str) -> Sequence[Task]:
        """Returns the tasks of `train` or `eval`, read once.

        Raises:
            ConfigurationError: They cannot be read.
        """
