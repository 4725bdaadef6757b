"""What a submission is worth: the part of the way from the sample submission to the best score that it has come, 0 to 1."""

from pathlib import Path

from marl_plugins.loading import load_file

judging = load_file(Path(__file__).with_name("judging.py"), "marl_recipe_dsbench_judging")


async def score_outcome(trajectory):
    return min(1.0, await judging.gap(trajectory))
