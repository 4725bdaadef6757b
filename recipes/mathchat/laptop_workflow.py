"""Planner -> calculator -> answerer; an answer of the planner that is no calculation ends it."""


async def run(task, roles, tools):
    plan = await roles.planner(problem=task.prompt)
    result = await tools.calculator(plan.text.strip())
    if not result.ok:
        return plan
    return await roles.answerer(problem=task.prompt, result=result.output, after=[plan])
