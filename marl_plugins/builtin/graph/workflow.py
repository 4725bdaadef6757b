"""A graph as the workflow of a run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from marl_plugins.builtin.graph.checks import RecipeParts
from marl_plugins.builtin.graph.compiler import Compiler
from marl_plugins.builtin.graph.executor import Decide, Runner
from marl_plugins.builtin.graph.files import Files
from marl_plugins.builtin.graph.nodes import TASK, TRAINING, Graph
from marl_plugins.builtin.graph.values import Absence, Result, as_text
from marl_plugins.core.branches import no_branches
from marl_plugins.core.failures import AgentFailure, ConfigurationError, RecipeError
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workflow import Roles, Tools, calls_of
from marl_plugins.engine.plan.workflow_file import Explorer, WorkflowFile

AVOIDABLE = ("IndexError", "KeyError", "ZeroDivisionError", "ValueError")
"""What an expression may raise where it is reached although its condition does not hold."""


class GraphWorkflow(WorkflowFile):
    """Runs a graph on a task.

    Args:
        files: Of which it was made.
        decide: Decides conditions in its place, for the rehearsal.
    """

    def __init__(self, graph: Graph, files: Iterable[str], decide: Decide | None = None):
        self.graph = graph
        self.files = list(files)
        self._decide = decide

    async def __call__(self, task: Task, roles: Roles, tools: Tools) -> Any:
        """Returns what the graph gives: a role's answer, or a text; None where that was skipped.

        Raises:
            AgentFailure: A node's.
            RecipeError: An expression does not take its values.
        """
        seen = Result({"id": task.id, "prompt": task.prompt, "metadata": task.metadata})
        calls = calls_of(roles)
        scope = {TASK: seen, TRAINING: Result(not calls.builder.trajectory.is_evaluation)}
        try:
            # A node states what it has seen, and which task it runs in may depend on timing.
            with no_branches():
                results = await Runner(calls, tools, self._decide).execute(self.graph, scope, ())
            result = self.graph.given(results)
        except RecipeError as error:
            if self._decide is not None and error.kind in AVOIDABLE:
                raise AgentFailure("no_answer", str(error)) from error
            raise
        if isinstance(result, Absence):
            return None
        if result.action is not None:
            return result.action
        return None if result.value is None else as_text(result.value)

    def decided_by(self, decide: Decide) -> GraphWorkflow:
        """Returns the same workflow, whose conditions somebody else decides."""
        return GraphWorkflow(self.graph, self.files, decide)

    def explorer(self) -> Explorer:
        from marl_plugins.builtin.graph.explorer import GraphExplorer

        return GraphExplorer(self.graph, self.decided_by)

    def outline(self) -> list[str]:
        from marl_plugins.builtin.graph.picture import outline

        return outline(self.graph)

    def mermaid(self) -> str:
        from marl_plugins.builtin.graph.picture import mermaid

        return mermaid(self.graph)


def read_workflow(run: Run) -> GraphWorkflow:
    """Returns the workflow of a run's graph.

    Raises:
        ConfigurationError: All that is wrong with it.
    """
    files = Files(run.folder)
    compiler = Compiler(RecipeParts.of(run), files)
    graph = compiler.compile(run.recipe.workflow)
    if compiler.problems or graph is None:
        raise ConfigurationError(dict.fromkeys(compiler.problems))
    return GraphWorkflow(graph, files.names)
