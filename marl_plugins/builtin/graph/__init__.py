"""Workflows as graphs in YAML (`workflow: graph.yaml`): named nodes whose edges are what their
expressions name (docs/graphs.md).

files.py        the YAML files, and where their keys stand      grammar.py   which keys there are
expressions.py  a checked part of Python's expressions          reading.py   what is read in an
    answer
names.py        what may be read where, while it is compiled    checks.py    agreement with roles,
    prompts and tools
compiler.py     YAML to nodes, with all problems at once        nodes.py     what a node of each
    kind does
executor.py     starts what is ready, waits, settles            values.py    what a node comes to,
    and from which actions
workflow.py     the callable that a Python workflow is          explorer.py, picture.py   for the
    rehearsal, for people
"""

from __future__ import annotations

from marl_plugins import hookimpl
from marl_plugins.core.run import Run
from marl_plugins.core.workflow import Workflow


class WorkflowCache(dict[tuple[str, ...], "Workflow"]):
    """The run's graph once it has been compiled, by its file and the tools that were known."""


@hookimpl
def marl_workflow(run: Run) -> Workflow | None:
    """Returns the graph of a recipe whose workflow is a YAML file.

    Raises:
        ConfigurationError: All that is wrong with it.
    """
    if not run.recipe.workflow.endswith((".yaml", ".yml")):
        return None
    from marl_plugins.builtin.graph.workflow import read_workflow

    compiled, key = run.state(WorkflowCache), (run.recipe.workflow, *sorted(run.tools))
    if key not in compiled:
        compiled[key] = read_workflow(run)
    return compiled[key]
