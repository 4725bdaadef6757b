"""A coach of the tiny recipe that charges what a program lacked to whoever should have made it (root_cause.py)."""

import asyncio
from pathlib import Path

from marl_plugins.coach.rubric import Criterion
from marl_plugins.loading import load_file

HERE = Path(__file__).resolve().parent
files = load_file(HERE / "files.py", "marl_recipe_dsbench_files")
root_cause = load_file(HERE / "root_cause.py", "marl_recipe_dsbench_root_cause")
tiny = load_file(HERE / "tiny_rubric.py", "marl_recipe_dsbench_tiny_rubric")


async def is_not_at_fault(action, seen):
    if seen.workspace is None:
        return False
    return not await asyncio.to_thread(root_cause.fault, tiny.stage_of(action), seen.workspace, files.written(seen))


DUTY = Criterion("what it has to make is there, or what it needs is not", 5, is_not_at_fault)
RUBRIC = {"engineer": [DUTY], "modeler": [DUTY], "analyst": [DUTY, tiny.SOLVED]}
