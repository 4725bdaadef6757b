"""MAPPA's MathChat (appendix B): every role sees the problem and what the role before it has handed
on."""


async def run(task, roles, tools, all_see_the_problem=True):
    problem = f"## The problem\n{task.prompt}\n"
    seen = problem if all_see_the_problem else ""
    solution = await roles.solver(material=problem)
    code = await roles.coder(
        material=f"{seen}\n## The Problem Solver's draft\n{said(solution)}\n", after=[solution]
    )
    return await roles.verifier(
        material=f"{seen}\n## The Code Executor's result\n{computed(code)}\n", after=[code]
    )


def said(action):
    """What a reasoning model says once it has thought; all of it where the thinking does not end,
    and of other models."""
    _, end, answer = str(action).rpartition("</think>")
    return answer.strip() if end else str(action).strip()


def computed(code):
    """The coder's last answer with the output of its last programs, which ran in the turn before
    where it ended without one."""
    output = code.tool_output or (code.before.tool_output if code.before else "")
    return said(code) + (f"\n\nIts programs printed:\n{output}" if output else "")
