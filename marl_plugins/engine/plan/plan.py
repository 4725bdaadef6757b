"""A checked run together with the plugins that take part in it."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.tasks import FileTasks
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.manager import Plugins


@dataclass(frozen=True)
class RoleLengths:
    """What a role is shown.

    Args:
        line: What was counted, in words.
        shown: Tokens of its prompt, its tools and the longest task; 0 where its tokenizer is not on
            this machine.
        alike: The tokens with which all its rows begin.
    """

    line: str
    shown: int = 0
    alike: int = 0


@dataclass(frozen=True)
class Plan:
    """The checked plan that commands and the runtime work with; plugins are handed the run alone.

    Args:
        run: The checked run.
        plugins: Its plugins.
        options: This project's own flags (`--dry-run`, `--json`, ...).
        lengths: What each role is shown at least.
    """

    run: Run
    plugins: Plugins
    options: argparse.Namespace
    lengths: Mapping[str, RoleLengths] = field(default_factory=dict)
    _tasks: dict[str, list[Task]] = field(default_factory=dict, repr=False)

    def tasks(self, split: str) -> list[Task]:
        """Returns the tasks of `train` or `eval`, read once.

        Raises:
            ConfigurationError: They cannot be read, or a plugin gives something else.
        """
        if split not in self._tasks:
            tasks = self.plugins.call_while_planning("marl_tasks", run=self.run, split=split) or []
            if not isinstance(tasks, Iterable):
                owners = self.plugins.owners("marl_tasks")
                where = at(plugin=owners, hook="marl_tasks", task=split)
                expected = "a list of marl_plugins.Task"
                raise ConfigurationError(
                    Problem("plugin.answer", where, f"{tasks!r:.80}", expected)
                )
            self._tasks[split] = tasks if isinstance(tasks, FileTasks) else list(tasks)
        return self._tasks[split]

    @property
    def counted(self) -> dict[str, int]:
        """Tasks of each split, and training steps, as far as tasks have been read: a hub's are read
        when a run starts."""
        counts: dict[str, int] = {
            split: len(self._tasks[split]) for split in ("train", "eval") if split in self._tasks
        }
        if "train" in counts:
            steps = len(self.run.episode_steps(counts["train"])) * self.run.args.train.num_episodes
            counts["steps"] = (
                steps if self.run.max_steps is None else min(steps, self.run.max_steps)
            )
        return counts
