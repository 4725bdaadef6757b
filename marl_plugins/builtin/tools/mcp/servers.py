"""Tools of servers that speak the Model Context Protocol (modelcontextprotocol.io), through the
official SDK.

    Server    one of the recipe's servers; its tool has one function for each tool of the server
    Session   one connection to it: one per process, opened anew once it has ended, or one per
              trajectory

A session is held by a task of its own. The SDK's client has to be left in the task that entered it,
and a server that dies may cancel that task; neither may be a trajectory's.

What the agent gets wrong (a name, arguments, what the server calls an error) is an answer with
`ok=False`. A server that cannot be reached, does not answer in time or breaks the protocol is an
`InfrastructureFailure`, for all calls that wait for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, TextIO

from marl_plugins.asking.prompts import shorten
from marl_plugins.builtin.tools.mcp.offers import functions_of, leave_unchecked, wrong_offers
from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.core.calls import parse_call
from marl_plugins.core.deadlines import in_turn
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, leaves_of, nearest
from marl_plugins.core.machine_limits import usable_cores
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.redaction import Redaction, shown_url
from marl_plugins.core.tools import Function, Tool, ToolCall
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.sandbox.streams import Stream

if TYPE_CHECKING:
    from marl_plugins.builtin.tools.mcp.sdk import CallToolResult, Client

STARTING_SECONDS = 60.0
"""Seconds in which a server has to be connected and to list its tools; some install themselves
first."""
ALIVE_SECONDS = 5.0
"""Seconds in which a server that has failed a call has to answer another request; else it is given
up, and started anew."""
LEAVING_SECONDS = 10.0
"""Seconds for a server's process to end; the SDK ends it after two, and kills it after four."""
LAST_WORDS_CHARS = 500
"""Characters of a server's standard error that are shown where it failed."""


class Noise(logging.Filter):
    """Lets through the first of what servers print to their standard output, where messages of the
    protocol belong, as one line: the SDK logs every line with its traceback."""

    seen = False

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = (
            "warning: an MCP server (tools.mcp) writes to its standard output what is no message "
            "of the protocol, which is passed over; have it write to standard error. Further "
            "lines are not reported"
        )
        record.args, record.exc_info = (), None
        first, self.seen = not self.seen, True
        return first


class Servers:
    """The MCP servers of a run."""

    def __init__(self) -> None:
        self._servers: dict[str, MCPServer] = {}
        logging.getLogger("mcp.client.stdio").addFilter(Noise())

    def of(self, configs: Mapping[str, MCPServerConfig], folder: Path) -> list[MCPServer]:
        """Returns the servers of a recipe, which lies in `folder`."""
        for name, config in configs.items():
            self._servers.setdefault(name, MCPServer(name, config, folder))
        return list(self._servers.values())

    async def try_all(self) -> None:
        """Connects to each server once, and notes what it offers.

        Raises:
            ConfigurationError: Some cannot be reached, or do not have the tools that the recipe
                names.
        """
        tried = await asyncio.gather(
            *(server.learn() for server in self._servers.values()), return_exceptions=True
        )
        problems: list[Problem] = []
        for error in tried:
            if isinstance(error, ConfigurationError):
                problems += error.problems
            elif error is not None:
                raise error
        if problems:
            raise ConfigurationError(problems)

    async def close(self) -> None:
        """Ends every session."""
        await asyncio.gather(*(server.close() for server in self._servers.values()))


class MCPServer:
    """One MCP server of a recipe.

    Args:
        folder: The recipe's, in which a command is started.
    """

    def __init__(self, name: str, config: MCPServerConfig, folder: Path):
        self.name = name
        self.config = config
        self.folder = folder
        self.functions: tuple[Function, ...] = ()
        self.starting = asyncio.Semaphore(usable_cores())
        self.calling = asyncio.Semaphore(config.concurrency)
        self.redaction = Redaction(
            [os.environ.get(v, "") for v in config.variables], url=_filled(config.url)
        )
        self.sessions: set[MCPSession] = set()
        self._session: MCPSession | None = None

    def tool(self) -> Tool:
        """Returns the server as a tool."""
        return Tool(
            self.name,
            self.run,
            calls_per_answer=self.config.calls_per_answer,
            open=self.opened if self.config.per_trajectory else None,
            functions=self.functions,
            outside=not self.config.per_trajectory,
        )

    async def run(self, call: ToolCall) -> ToolResult:
        """Answers one call: of a function by its name, or a text
        `{"name": ..., "arguments": {...}}`.

        Raises:
            InfrastructureFailure: The server is down, late, or breaks the protocol.
        """
        started = time.monotonic()
        ok, output = await self._answer(call)
        shown = shorten(self.redaction.redact(output), self.config.output_chars)
        return ToolResult(self.name, call.text, shown, ok, time.monotonic() - started)

    async def _answer(self, call: ToolCall) -> tuple[bool, str]:
        made = call.function or parse_call(call.text)
        if made is None or not isinstance(made.arguments, Mapping):
            return False, 'expected {"name": ..., "arguments": {...}}'
        names = [function.name for function in self.functions]
        if names and made.name not in names:
            return False, f"there is no tool {made.name!r}{nearest(made.name, names)}"
        async with in_turn(self.calling):
            session: MCPSession = call.session or self.session()
            return await session.call(made.name, dict(made.arguments))

    def session(self) -> MCPSession:
        """Returns the session that all trajectories share; a new one where it has ended."""
        if self._session is None or self._session.ended:
            self._session = MCPSession(self)
        return self._session

    @asynccontextmanager
    async def opened(self, task: str, sample: int, step: int) -> AsyncIterator[MCPSession]:
        """Provides a session of one trajectory; once it has ended, it is not replaced, for its
        state is gone."""
        session = MCPSession(self)
        try:
            await session.client()
            yield session
        finally:
            await session.close()

    async def learn(self) -> None:
        """Opens a session to learn what the server offers, and ends it: the event loop may not turn
        for minutes.

        Raises:
            ConfigurationError: It cannot be opened, or tools that the recipe names are not among
                them.
        """
        where = at(key=f"tools.mcp.{self.name}")
        session = MCPSession(self)
        try:
            await session.client()
        except InfrastructureFailure as failure:
            fix = "does it run, and is it the right `command` or `url`?"
            raise ConfigurationError(
                Problem("mcp.unreachable", where, str(failure), fix=fix)
            ) from failure
        finally:
            await session.close()
        offered, named = {f.name: f for f in session.functions}, self.config.tools
        problems = [
            Problem(
                "mcp.no_tool",
                at(key=f"tools.mcp.{self.name}.tools"),
                f"it has no tool {name!r}",
                fix=meant(name, offered),
            )
            for name in named
            if name not in offered
        ]
        if not offered:
            problems.append(Problem("mcp.no_tools", where, "it has no tools"))
        chosen = [offered[name] for name in named or offered if name in offered]
        problems += [Problem("mcp.offer", where, wrong) for wrong in wrong_offers(chosen)]
        if problems:
            raise ConfigurationError(problems)
        self.functions = tuple(chosen)

    async def close(self) -> None:
        """Ends all sessions."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))

    @asynccontextmanager
    async def transport(self, errors: TextIO) -> AsyncIterator[AbstractAsyncContextManager[Any]]:
        """Provides the way to the server; its process writes to `errors`."""
        config = self.config
        if config.url:
            from mcp.client.streamable_http import streamable_http_client

            from marl_plugins.builtin.tools.mcp.sdk import http

            headers = {name: _filled(value) for name, value in config.headers.items()}
            timeout = http.Timeout(STARTING_SECONDS, read=config.seconds + STARTING_SECONDS)
            limits = http.Limits()  # `concurrency` is all that bounds connections
            async with http.AsyncClient(headers=headers, timeout=timeout, limits=limits) as client:
                yield streamable_http_client(_filled(config.url), http_client=client)
        else:
            from mcp.client.stdio import StdioServerParameters, stdio_client

            program = config.program(self.folder)
            if program is None:
                raise FileNotFoundError(f"there is no program {config.command[0]!r}")
            path = os.pathsep.join(
                [str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]
            )
            env = {"PATH": path} | {name: _filled(value) for name, value in config.env.items()}
            words = StdioServerParameters(
                command=program, args=config.command[1:], env=env, cwd=self.folder.absolute()
            )
            yield stdio_client(words, errors)

    @property
    def place(self) -> str:
        """Returns where the server is, as it may be written."""
        return shown_url(self.config.url) if self.config.url else self.config.command[0]


class MCPSession:
    """One connection to a server, in a task of its own that lasts until `close`, or until the
    server ends it."""

    def __init__(self, server: MCPServer):
        self.functions: list[Function] = []
        self._server = server
        self._said: Stream | None = None
        """What its process writes to standard error."""
        self._leave = asyncio.Event()
        self._client: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._hold(), name=f"MCP server {server.name}")
        server.sessions.add(self)
        self._owner.add_done_callback(self._ended)

    @property
    def ended(self) -> bool:
        """Returns whether no call can be made any more."""
        return self._leave.is_set() or self._owner.done()

    def _ended(self, owner: asyncio.Task[None]) -> None:
        self._server.sessions.discard(self)
        if not owner.cancelled():
            owner.exception()  # said by whoever waits for the session; asyncio would log it too

    async def _hold(self) -> None:
        from marl_plugins.builtin.tools.mcp.sdk import Client

        async with AsyncExitStack() as stack:
            reading, writing = os.pipe()
            self._said = Stream(reading, 4 * LAST_WORDS_CHARS, lambda _: None)
            stack.callback(self._said.close)
            errors = stack.enter_context(os.fdopen(writing, "w"))
            async with self._server.starting, asyncio.timeout(STARTING_SECONDS):
                transport = await stack.enter_async_context(self._server.transport(errors))
                client = await stack.enter_async_context(
                    Client(transport, read_timeout_seconds=STARTING_SECONDS)
                )
                self.functions = await _listed(client)
            self._client.set_result(client)
            await self._leave.wait()

    async def client(self) -> Client:
        """Returns the SDK's client, once it is connected.

        Raises:
            InfrastructureFailure: The session has ended, or could not be opened.
        """
        if not self._client.done():
            await asyncio.wait((self._client, self._owner), return_when=asyncio.FIRST_COMPLETED)
        if self.ended:
            raise self._failure(f"cannot be reached: {self._why()}")
        return self._client.result()

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[bool, str]:
        """Calls one of the server's tools; returns its answer, and whether that is no error.

        Raises:
            InfrastructureFailure: It has not answered.
        """
        from marl_plugins.builtin.tools.mcp.sdk import INVALID_PARAMS, REQUEST_TIMEOUT, MCPError

        client, seconds = await self.client(), self._server.config.seconds
        try:
            result = await client.call_tool(name, arguments, read_timeout_seconds=seconds)
        except MCPError as error:
            if error.error.code == INVALID_PARAMS:
                return False, str(error)
            await self._end_unless_alive(client)
            late = f"did not answer within {seconds:g} s (tools.mcp.{self._server.name}.seconds)"
            raise self._failure(
                f"{name}: {late if error.error.code == REQUEST_TIMEOUT else error}"
            ) from error
        # a broken connection or protocol; a result that does not fit its schema
        except Exception as error:
            await self._end_unless_alive(client)
            raise self._failure(f"{name}: {type(error).__name__}: {error}") from error
        return not result.is_error, _text_of(result)

    async def _end_unless_alive(self, client: Client) -> None:
        """Gives the session up where the server answers nothing any more, so that the next call
        opens a new one."""
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                leave_unchecked((await client.list_tools(cache_mode="bypass")).tools)
        except Exception:
            self._leave.set()

    async def close(self) -> None:
        """Ends the session and the server's process."""
        self._leave.set()
        if not self._client.done():
            self._owner.cancel()  # it is still being opened
        await asyncio.wait({self._owner}, timeout=LEAVING_SECONDS)

    def _failure(self, why: str) -> InfrastructureFailure:
        output = self._said.text().strip()[-LAST_WORDS_CHARS:] if self._said else ""
        text = f"MCP server {self._server.name!r} ({self._server.place}): {why}" + (
            f"; it wrote: {output}" if output else ""
        )
        return InfrastructureFailure("tool", self._server.redaction.text(text))

    def _why(self) -> str:
        """Returns why the session has ended."""
        failed = self._owner.done() and not self._owner.cancelled()
        if not failed or (error := self._owner.exception()) is None:
            return "its connection has ended"
        if isinstance(error, TimeoutError):
            return f"not connected within {STARTING_SECONDS:g} s"
        return ", ".join(
            dict.fromkeys(str(leaf) or type(leaf).__name__ for leaf in leaves_of(error))
        )


async def _listed(client: Client) -> list[Function]:
    """All tools that a server has."""
    functions: list[Function] = []
    cursor = None
    while True:
        page = await client.list_tools(cursor=cursor)
        leave_unchecked(page.tools)
        functions += functions_of(page.tools)
        cursor = page.next_cursor
        if cursor is None:
            return functions


def _text_of(result: CallToolResult) -> str:
    """Returns what a result says, texts of resources included; of pictures and the like only that
    there was one."""
    if not result.content and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    texts = [getattr(block, "resource", block) for block in result.content]
    return "\n".join(
        getattr(text, "text", f"[{block.type}]")
        for text, block in zip(texts, result.content, strict=True)
    )


def _filled(text: str) -> str:
    """A text with the variables of the environment in it; one that is not set is reported by the
    plan."""
    return Template(text).safe_substitute(os.environ)
