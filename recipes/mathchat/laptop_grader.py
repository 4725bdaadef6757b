"""Each role answers for its own part: the planner for what its calculation comes to, the answerer
for a sentence whose only number is the calculator's.

`right` (`eval/part/right`) is what counts: a sentence whose only number is the right one.
"""

import re

from .calculator import computed

SENTENCE = re.compile(r"[A-Z][^\d\n]*(-?\d+)\D*[.!]")


def parts(trajectory):
    plan, *said = trajectory.actions
    result = computed(plan.text.strip())
    planned = result == trajectory.task.label
    match = SENTENCE.fullmatch(said[0].text.strip()) if said else None
    told = match is not None and match[1] == result
    trajectory.outcome_parts = {"right": float(planned and told)}
    return planned, told


async def score_outcome(trajectory):
    planned, told = parts(trajectory)
    return {"planner": float(planned), "answerer": float(told)}
