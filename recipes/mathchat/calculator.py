"""The tool: an answer that is a calculation and nothing else is computed."""

import re

from marl_plugins import Tool, ToolResult, hookimpl

CALCULATION = re.compile(r"\d{1,6}(?: ?[-+*] ?\d{1,6})+")


def computed(text):
    """What a calculation comes to; None of anything else."""
    return str(eval(text)) if CALCULATION.fullmatch(text) else None  # digits and signs alone


@hookimpl
def marl_tools(run):
    async def calculate(call):
        value = computed(call.text)
        answer = "this is no calculation" if value is None else value
        return ToolResult("calculator", call.text, answer, ok=value is not None)

    return [Tool("calculator", calculate, CALCULATION.findall)]
