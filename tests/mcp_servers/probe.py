"""An MCP server for tests: over stdio, or over HTTP on a port of the loopback."""

import asyncio
import os
import sys
import time

from mcp.types import EmbeddedResource, TextResourceContents

PORT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
try:
    from mcp.server.mcpserver import MCPServer

    server, address = MCPServer("probe"), {"host": "127.0.0.1", "port": PORT}
except ImportError:  # the SDK's first generation
    from mcp.server.fastmcp import FastMCP

    server, address = FastMCP("probe", host="127.0.0.1", port=PORT), {}
notes: list[str] = []


@server.tool()
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
async def echo_later(text: str, seconds: float) -> str:
    """Says a text after some time."""
    await asyncio.sleep(seconds)
    return text


@server.tool()
async def fail() -> str:
    """Fails."""
    raise ValueError("not with that")


@server.tool()
async def die() -> str:
    """Ends the server at once."""
    print("these are my last words", file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def long(n: int) -> str:
    """Says much."""
    return "a" * n + "z"


@server.tool()
async def note(text: str) -> str:
    """Keeps a text; says all that were kept, and by which process."""
    notes.append(text)
    return f"{os.getpid()} {','.join(notes)}"


@server.tool()
async def echo_in_turn(text: str, seconds: float) -> str:
    """Says a text after some time, in which nobody else is answered."""
    time.sleep(seconds)  # noqa: ASYNC251
    return text


@server.tool()
async def attached() -> EmbeddedResource:
    """Attaches a text."""
    resource = TextResourceContents(uri="file:///page.md", mimeType="text/plain", text="the page")
    return EmbeddedResource(type="resource", resource=resource)


@server.tool()
async def environment(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "not set")


if PORT:
    server.run("streamable-http", **address)
else:
    server.run("stdio")
