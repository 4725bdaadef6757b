async def workflow(prompt, label, agents, tool_manager, task=None, metadata=None, **rest):
    generator_output, refiner_output = agents[0](prompt), agents[2](prompt)
    try:
        response_content, response_metadata = await tool_manager.execute_tool(
            "code_interpreter", {"code": agents[1](prompt)}, metadata=metadata
        )
        status = response_metadata["status"]
    except Exception as e:
        response_content, status = "ERROR", f"failed: {e!r}"
    # fmt: off
    return response_content, [
        generator_output,
        f"Answer is \\boxed{response_content.strip()}" if status else "Answer is \\boxed{None}",
        refiner_output
    ]
