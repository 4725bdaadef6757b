"""The tool: `<price>cup</price>` in an answer is a call. A thing that is not sold is the agent's mistake, and it is told so.

`find` sees the calls in an answer, `run` answers one. A tool that asks a server has an HTTP client in `run`, and raises
`InfrastructureFailure` when the server is down: then nobody is blamed.
"""

import re
from pathlib import Path

from marl_plugins import hookimpl
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.loading import load_file

PRICES = load_file(Path(__file__).with_name("tasks.py"), "tool_user_prices").PRICES  # also where the tasks come from a file
CALL = re.compile(r"<price>\s*(\w+)\s*</price>")


@hookimpl
def marl_tools(run):
    async def price(call):
        found = PRICES.get(call.text)
        answer = f"{call.text} is not sold here" if found is None else f"{call.text}: {found}"
        return ToolResult("price", call.text, answer, ok=found is not None)

    return [Tool("price", price, CALL.findall)]
