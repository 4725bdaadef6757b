"""Reward backpropagation by the files of the workspace: a failure is blamed on whoever owed what was missing (root_cause.py).

    --plugin recipes/dsbench/traced.py --coach.rubric recipes/dsbench/symptom_rubric.py

The attributor of `marl_plugins.reward_backprop` is replaced. A failure in whose files no fault can be seen is spread over all
actions, and a success is shared by all.
"""

import asyncio
from pathlib import Path

from marl_plugins import hookimpl
from marl_plugins.loading import load_file
from marl_plugins.reward_backprop import BackpropState
from marl_plugins.reward_backprop.backward import Attribution

HERE = Path(__file__).resolve().parent
requires = ("marl_plugins.reward_backprop",)
files = load_file(HERE / "files.py", "marl_recipe_dsbench_files")
root_cause = load_file(HERE / "root_cause.py", "marl_recipe_dsbench_root_cause")
tiny = load_file(HERE / "tiny_rubric.py", "marl_recipe_dsbench_tiny_rubric")


class Files:
    """Blames the decisions whose files are missing or unfit."""

    async def attribute(self, action, seen, residual):
        if residual.value >= 0:
            return Attribution(residual.value, why="a success")
        workspace, reason = files.workspace_of(seen), None
        if workspace is not None:
            written = {path for path, writer in files.writers(seen).items() if writer}
            reason = await asyncio.to_thread(root_cause.fault, tiny.stage_of(action), workspace, written)
        return Attribution(-1.0 if reason else 0.0, why=reason or "no fault is seen here")


@hookimpl
def marl_configure(run):
    run.state(BackpropState).attributor = Files()
