"""All or nothing: a valid submission that has come nine tenths of the way from the sample
submission to the reference's score.

What each decision is at fault for by its files is noted with the action (`fault`), as long as there
are files.
"""

import asyncio

from . import files, judging, root_cause


async def score_outcome(trajectory):
    if trajectory.workspace is not None:
        found = await asyncio.to_thread(
            root_cause.faults, trajectory.workspace, files.written(trajectory)
        )
        for action in trajectory.actions:
            stage = root_cause.pipeline.BY_ROLE[action.role][action.turn]
            action.notes["fault"] = found.get(stage.name, "")
    return float(await judging.gap(trajectory) >= judging.ENOUGH)
