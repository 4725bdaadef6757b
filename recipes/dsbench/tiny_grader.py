"""All or nothing: a valid submission that has come nine tenths of the way from the sample submission to the reference's score.

What each decision is at fault for by its files is noted with the action (`fault`), as long as there are files.
"""

import asyncio
from pathlib import Path

from marl_plugins.loading import load_file

HERE = Path(__file__).resolve().parent
files = load_file(HERE / "files.py", "marl_recipe_dsbench_files")
judging = load_file(HERE / "judging.py", "marl_recipe_dsbench_judging")
root_cause = load_file(HERE / "root_cause.py", "marl_recipe_dsbench_root_cause")


async def score_outcome(trajectory):
    if trajectory.workspace is not None:
        found = await asyncio.to_thread(root_cause.faults, trajectory.workspace, files.written(trajectory))
        for action in trajectory.actions:
            stage = root_cause.pipeline.BY_ROLE[action.role][action.turn]
            action.notes["fault"] = found.get(stage.name, "")
    return float(await judging.gap(trajectory) >= judging.ENOUGH)
