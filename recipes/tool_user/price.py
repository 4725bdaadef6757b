"""The tool: `<price>cup</price>` in an answer is a call. A thing that is not sold is the agent's
mistake, and it is told so.

`find` sees the calls in an answer, `run` answers one. A tool that asks a server has an HTTP client
in `run`, and raises
`InfrastructureFailure` when the server is down: then nobody is blamed.
"""

import re

from marl_plugins import Tool, ToolResult, hookimpl

from .tasks import PRICES  # also where the tasks come from a file

CALL = re.compile(r"<price>\s*(\w+)\s*</price>")


@hookimpl
def marl_tools(run):
    async def price(call):
        found = PRICES.get(call.text)
        answer = f"{call.text} is not sold here" if found is None else f"{call.text}: {found}"
        return ToolResult("price", call.text, answer, ok=found is not None)

    return [Tool("price", price, CALL.findall)]
