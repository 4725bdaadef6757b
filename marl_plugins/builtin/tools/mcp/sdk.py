"""The parts of the official SDK that are used, as its second generation has them (mcp 2). The first
one (1.30) is made to look alike."""

from __future__ import annotations

from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or find_spec("mcp_types"):
    import httpx2 as http
    from mcp import Client, MCPError
    from mcp_types import INVALID_PARAMS, REQUEST_TIMEOUT, CallToolResult
    from mcp_types import Tool as OfferedTool
else:
    from datetime import timedelta
    from types import SimpleNamespace

    import httpx as http
    from mcp import ClientSession
    from mcp import McpError as MCPError
    from mcp.types import INVALID_PARAMS, CallToolResult
    from mcp.types import Tool as OfferedTool

    REQUEST_TIMEOUT = http.codes.REQUEST_TIMEOUT

    class Client(AsyncExitStack):
        """A session with the client's methods of the second generation."""

        def __init__(self, transport: Any, read_timeout_seconds: float):
            super().__init__()
            self._transport = transport
            self._seconds = read_timeout_seconds

        async def __aenter__(self) -> Client:
            reading, writing, *_ = await self.enter_async_context(self._transport)
            session = ClientSession(reading, writing, timedelta(seconds=self._seconds))
            self._session = await self.enter_async_context(session)
            await self._session.initialize()
            return self

        async def list_tools(self, cursor: str | None = None, cache_mode: str = "") -> Any:
            page = await self._session.list_tools(cursor)
            tools = [
                SimpleNamespace(
                    name=tool.name,
                    description=tool.description,
                    input_schema=tool.inputSchema,
                    output_schema=tool.outputSchema,  # the session checks results by this very one
                )
                for tool in page.tools
            ]
            return SimpleNamespace(tools=tools, next_cursor=page.nextCursor)

        async def call_tool(
            self, name: str, arguments: dict[str, Any], read_timeout_seconds: float
        ) -> Any:
            seconds = timedelta(seconds=read_timeout_seconds)
            result = await self._session.call_tool(name, arguments, seconds)
            return SimpleNamespace(
                content=result.content,
                structured_content=result.structuredContent,
                is_error=result.isError,
            )


__all__ = [
    "INVALID_PARAMS", "REQUEST_TIMEOUT", "CallToolResult", "Client", "MCPError", "OfferedTool",
    "http",
]  # fmt: skip
