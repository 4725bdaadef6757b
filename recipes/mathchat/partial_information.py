"""MAPPA's MathChat under partial information (appendix A.1): only the solver sees the problem;
every other role sees what the role before it has handed on and nothing else."""

from . import full_information as full


async def run(task, roles, tools):
    return await full.run(task, roles, tools, all_see_the_problem=False)
