"""All or nothing: a valid submission that has come nine tenths of the way from the sample submission to the reference's score."""

from pathlib import Path

from marl_plugins.loading import load_file

grader = load_file(Path(__file__).with_name("grader.py"), "marl_recipe_dsbench_grader")
ENOUGH = 0.9


async def score_outcome(trajectory):
    await grader.score_outcome(trajectory)
    return float(trajectory.outcome_parts.get("gap", 0.0) >= ENOUGH)
