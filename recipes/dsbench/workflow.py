"""Data Engineer -> Modeler -> Analyst. What one leaves for the next are files in the workspace that
they share."""


async def run(task, roles, tools):
    about = task.metadata
    fields = {
        "task": task.prompt,
        "words": about["words"],
        "metric": about["metric"],
        "id": about["id"],
        "targets": ", ".join(about["targets"]),
    }
    data = await roles.engineer(**fields)
    model = await roles.modeler(**fields, data=data)
    return await roles.analyst(**fields, data=data, model=model)
