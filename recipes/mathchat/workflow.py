"""Problem Solver -> Code Executor -> Verifier.

The solver reasons, the coder writes a program and sees what it prints (for a few turns), the
verifier reads both and gives the answer. Each may be a policy of its own.
"""


async def run(task, roles, tools):
    solution = await roles.solver(problem=task.prompt)
    code = await roles.coder(problem=task.prompt, solution=solution)
    computed = code.tool_output or str(code)
    return await roles.verifier(
        problem=task.prompt, solution=solution, computed=computed, after=[code]
    )
