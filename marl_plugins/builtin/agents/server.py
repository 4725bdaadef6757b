"""The endpoint: OpenAI's protocols and Anthropic's on loopback, in the run's own process and event
loop, as long as a trajectory needs it."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from aiohttp import web

from marl_plugins.builtin.agents.answers import completion, completion_chunks, event
from marl_plugins.builtin.agents.messages import (
    message,
    message_error,
    message_events,
    parse_messages,
    typed,
)
from marl_plugins.builtin.agents.requests import (
    ChatRequest,
    EndpointRefusal,
    checked,
    parse_rewards,
)
from marl_plugins.builtin.agents.responses import events, parse_response, response
from marl_plugins.builtin.agents.session import (
    EndpointAnswer,
    EndpointSession,
    as_refusals,
    failure_of,
)
from marl_plugins.core.failures import AgentFailure

MOST_BYTES = 64 * 2**20
"""Of a request."""
QUIET_SECONDS = 5.0
"""After so long without an answer a stream begins, and then says that it is alive."""


def openai_error(error: BaseException) -> dict[str, Any]:
    """Returns an error as OpenAI's clients know it."""
    status, text, code = failure_of(error)
    kind = {401: "authentication_error", 404: "not_found_error", 503: "server_error"}.get(
        status, "invalid_request_error"
    )
    return {"error": {"message": text, "type": kind, "param": None, "code": code or None}}


class Dialect(NamedTuple):
    """How a request is read, and how it is answered: whole, in pieces, and in vain.

    Args:
        alive: What a stream says while the answer is on its way.
        failed: Kind of the event by which a stream says that there is none.
    """

    parse: Callable[[bytes], ChatRequest]
    whole: Callable[[ChatRequest, EndpointAnswer], Mapping[str, Any]]
    pieces: Callable[[ChatRequest, EndpointAnswer], Iterator[bytes]]
    error: Callable[[BaseException], Mapping[str, Any]] = openai_error
    alive: bytes = b": the answer is on its way\n\n"
    failed: str = ""


CHAT = Dialect(partial(checked, ChatRequest), completion, completion_chunks)
MESSAGES = Dialect(
    parse_messages, message, message_events, message_error, typed("ping"), failed="error"
)
DIALECTS = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": Dialect(parse_response, response, events),
    "/v1/messages": MESSAGES,
}
COUNT = "/v1/messages/count_tokens"


class AgentEndpoint:
    """The endpoint, in one event loop.

    Args:
        listener: On which it listens; None: on a free port of loopback.
        places: Of programs at it.

    Attributes:
        base_url: Its address, as clients take it.
    """

    def __init__(self, listener: socket.socket | None = None, places: int = 1) -> None:
        self.base_url = ""
        self.places = asyncio.Semaphore(places)
        self._listener = listener
        self._sessions: dict[str, EndpointSession] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[AgentEndpoint]:
        """Answers until the end."""
        app = web.Application(client_max_size=MOST_BYTES, middlewares=[refusing])
        for path, dialect in DIALECTS.items():
            app.router.add_post(path, partial(self._answer, dialect))
        app.router.add_post(COUNT, self._count)
        app.router.add_post("/v1/rewards", self._rewards)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name}", self._model)
        app.router.add_route("*", "/{path:.*}", self._unknown)
        runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.0)
        await runner.setup()
        try:
            here = self._listener
            site = (
                web.TCPSite(runner, "127.0.0.1", 0) if here is None else web.SockSite(runner, here)
            )
            await site.start()
            self.base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            yield self
        finally:
            await runner.cleanup()

    @contextmanager
    def serving(self, session: EndpointSession) -> Iterator[None]:
        """Answers requests with a session's key until the end."""
        self._sessions[session.key] = session
        try:
            yield
        finally:
            del self._sessions[session.key]

    def _session(self, request: web.Request) -> EndpointSession:
        bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        key = request.headers.get("x-api-key", bearer)
        if key not in self._sessions:
            raise EndpointRefusal(
                "this key belongs to no trajectory that is running", 401, "invalid_api_key"
            )
        return self._sessions[key]

    async def _models(self, request: web.Request) -> web.StreamResponse:
        data = [_about(role) for role in self._session(request).roles]
        return web.json_response({"object": "list", "data": data})

    async def _model(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if name not in self._session(request).roles:
            raise EndpointRefusal(f"there is no role {name!r}", 404, "model_not_found")
        return web.json_response(_about(name))

    async def _count(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        asked = parse_messages(await _body(request))
        return web.json_response({"input_tokens": await as_refusals(session.count(asked))})

    async def _rewards(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        rewards = parse_rewards(await _body(request))
        session.reward(rewards)
        return web.json_response({"object": "list", "data": [one.id for one in rewards]})

    async def _unknown(self, request: web.Request) -> web.StreamResponse:
        what = f"{request.method} {request.path} is not answered here"
        raise EndpointRefusal(f"{what}; chat completions, responses, messages and models are", 404)

    async def _answer(self, dialect: Dialect, request: web.Request) -> web.StreamResponse:
        """Answers a request, whole or in pieces; an error that is known before the first piece has
        its own status."""
        stream: web.StreamResponse | None = None
        session: EndpointSession | None = None
        try:
            session = self._session(request)
            body = await _body(request)
            asked = dialect.parse(body)
            work = session.ask(asked, body, request.headers.get("x-marl-after"), _repeats(request))
            if asked.stream:
                await asyncio.wait([work], timeout=QUIET_SECONDS)
                if not work.done():
                    stream = await _begun(request)
                while not work.done():
                    assert stream is not None
                    await stream.write(dialect.alive)
                    await asyncio.wait([work], timeout=QUIET_SECONDS)
            await asyncio.wait([work])
            if request.transport is not None:  # its client has not left
                session.delivered(work)
            answer = work.result()
            if not asked.stream:
                return web.json_response(dialect.whole(asked, answer))
            stream = stream or await _begun(request)
            for piece in dialect.pieces(asked, answer):
                await stream.write(piece)
            await stream.write_eof()
            return stream
        except ConnectionError:  # the client has left; what it asked for stays asked
            return stream or web.Response(status=499)
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) and task.cancelling():
                raise
            raise EndpointRefusal(
                "this key's trajectory has ended", 401, "invalid_api_key"
            ) from None
        # whatever is no refusal or failure is a bug, which ends the run through the session
        except Exception as error:
            failure = error
            if session is not None and isinstance(error, EndpointRefusal):
                session.refused = str(error)
            elif session is not None and not isinstance(error, AgentFailure):
                session.fail(error)
        if stream is None:
            return refused(failure, dialect)
        with suppress(ConnectionError):
            await stream.write(event(dialect.error(failure), dialect.failed))
            await stream.write_eof()
        return stream


@web.middleware
async def refusing(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Answers a request that is refused."""
    try:
        return await handler(request)
    except EndpointRefusal as error:
        dialect = MESSAGES if request.path == COUNT else DIALECTS.get(request.path, CHAT)
        return refused(error, dialect)


def refused(error: BaseException, dialect: Dialect) -> web.Response:
    """Returns an error as clients of a protocol know it."""
    return web.json_response(dialect.error(error), status=failure_of(error)[0])


def _about(role: str) -> dict[str, Any]:
    return {"id": role, "object": "model", "created": int(time.time()), "owned_by": "run"}


def _repeats(request: web.Request) -> bool:
    """Returns whether a client marks a request as one that it has sent before."""
    count = request.headers.get("x-stainless-retry-count", "0")
    return count.isdigit() and int(count) > 0


async def _body(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise EndpointRefusal(f"a request has at most {MOST_BYTES // 2**20} MB", 413) from None


async def _begun(request: web.Request) -> web.StreamResponse:
    stream = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"}
    )
    await stream.prepare(request)
    return stream
