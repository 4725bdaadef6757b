"""The run's workflow, and what can be known of one that is read from a file of another kind than
Python's.

A Python workflow is traced while the rehearsal runs it, and its text is searched for what it looks
for in answers. A `WorkflowFile` says itself what to try, how it is drawn, and of which files it is
made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from marl_plugins.core.problems import Problem
from marl_plugins.core.run import Run
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.script import Script


class Explorer:
    """Looks for what leads into every part of a workflow."""

    def attempts(self) -> Iterator[Script]:
        """Yields runs that are worth a try, judged as those with invented answers are; each is
        played before the next one is asked for."""
        yield from ()

    def remarks(self) -> list[Problem]:
        """Returns warnings about what all of them have shown."""
        return []


class WorkflowFile(ABC):
    """A workflow that is read from a file of another kind than Python's.

    Attributes:
        files: All files of which it is made, relative to the recipe's folder.
    """

    files: Sequence[str]

    @abstractmethod
    async def __call__(self, task: Any, roles: Any, tools: Any) -> Any:
        """Runs it, as any workflow."""

    @abstractmethod
    def explorer(self) -> Explorer:
        """Returns what its rehearsal tries."""

    @abstractmethod
    def outline(self) -> list[str]:
        """Returns its parts as lines of text."""

    @abstractmethod
    def mermaid(self) -> str:
        """Returns its parts as a Mermaid flowchart."""


def workflow_of(plugins: Plugins, run: Run) -> Workflow:
    """Returns the run's workflow: a plugin's, or the recipe's."""
    workflow: Workflow = plugins.call_while_planning("marl_workflow", run=run)
    return workflow


def workflow_files(plugins: Plugins, run: Run) -> list[str]:
    """Returns the files of a workflow that is no Python, relative to the recipe's folder; none of
    another."""
    if run.recipe.workflow.endswith(".py"):
        return []
    workflow = workflow_of(plugins, run)
    return [*workflow.files] if isinstance(workflow, WorkflowFile) else []
