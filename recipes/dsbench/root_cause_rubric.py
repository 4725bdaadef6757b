"""A coach of the tiny recipe that charges what a program lacked to whoever should have made it
(root_cause.py)."""

import asyncio

from marl_plugins import Criterion

from . import files, root_cause
from . import tiny_rubric as tiny


async def is_not_at_fault(action, seen):
    if seen.workspace is None:
        return False
    return not await asyncio.to_thread(
        root_cause.fault, tiny.stage_of(action), seen.workspace, files.written(seen)
    )


DUTY = Criterion("what it has to make is there, or what it needs is not", 5, is_not_at_fault)
RUBRIC = {"engineer": [DUTY], "modeler": [DUTY], "analyst": [DUTY, tiny.SOLVED]}
