"""MAPPA's MathChat under partial information (appendix A.1): only the solver sees the problem; every other role sees what the role
before it has handed on and nothing else."""

from pathlib import Path

from marl_plugins.loading import load_file

full = load_file(Path(__file__).with_name("full_information.py"), "marl_recipe_mathchat_full_information")


async def run(task, roles, tools):
    return await full.run(task, roles, tools, all_see_the_problem=False)
