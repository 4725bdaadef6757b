"""The sandbox as a service that speaks SandboxFusion's protocol: `POST /run_code`, `GET /v1/ping`.

Its programs are those of the local levels, with their limits, and at most `concurrency` of them run
at the same time; more wait. A request that cannot be right is answered by 422 in FastAPI's form, as
theirs is; what fails here by a SandboxError, which clients repeat.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import json
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

import pydantic
from aiohttp import web

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem
from marl_plugins.sandbox.opening import open_sandbox
from marl_plugins.sandbox.program import (
    Language,
    Limits,
    Program,
    ProgramResult,
    Sandbox,
)
from marl_plugins.sandbox.section import SandboxConfig

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
OUTPUT_CHARS = 1 << 20
"""How much of each stream is returned: its first and its last half."""
LARGEST_REQUEST_BYTES = 400 << 20
"""Maximum bytes of a request: a workspace of 256 MB in base64, and its program."""
WAITING = 2 * LARGEST_REQUEST_BYTES
"""Maximum bytes of all requests whose programs run or wait; what is more is not read yet."""
MAX_REQUESTS = 1000
"""Maximum number of requests that run or wait."""
SENDING_SECONDS = 120.0
"""Seconds in which a request has to arrive, once it is read."""
IMPORTS = ("base64", "contextlib", "hashlib", "json", "selectors", "typing", "zipfile")
"""Of remote.py, which runs before every program that fusion.py sends."""
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
"""A name or an address, and a port."""
LEAVING_SECONDS = 2.0
"""Seconds for answers on their way when the service ends."""


@dataclass(frozen=True)
class RequestLimits:
    """Limits of what one program may ask for.

    Args:
        memory_mb: Also what one gets that asks for none (-1).
    """

    seconds: float
    memory_mb: int


class RunCode(pydantic.BaseModel):
    """A request, as SandboxFusion's server reads it; unknown fields are not looked at."""

    code: str
    language: Language
    compile_timeout: float = 10
    """Nothing is compiled here."""
    run_timeout: float = pydantic.Field(10, gt=0, allow_inf_nan=False)
    memory_limit_MB: int = pydantic.Field(-1, ge=-1)
    stdin: str | None = None
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []

    def program(self, most: RequestLimits) -> Program:
        """Returns the program that is to be run.

        Raises:
            ValueError: It asks for more than it may, or for files that cannot be.
        """
        if self.run_timeout > most.seconds:
            raise ValueError(
                f"run_timeout: {self.run_timeout:g} s; this service allows {most.seconds:g} "
                "(--most_seconds)"
            )
        if self.memory_limit_MB > most.memory_mb:
            raise ValueError(
                f"memory_limit_MB: {self.memory_limit_MB} MB; this service allows "
                f"{most.memory_mb} (--most_memory_mb)"
            )
        files = {
            path: base64.b64decode(text, validate=True)
            for path, text in self.files.items()
            if text is not None
        }
        limits = Limits(
            seconds=self.run_timeout,
            memory_mb=self.memory_limit_MB if self.memory_limit_MB > 0 else most.memory_mb,
            output_chars=OUTPUT_CHARS,
        )
        stdin = (self.stdin or "").encode()
        return Program(
            self.code, self.language, stdin, files, tuple(self.fetch_files), limits, modules=True
        )


class RequestRoom:
    """Place for the bytes of requests: who comes when it is full waits, and nothing of it is
    read."""

    def __init__(self, total: int, most: int):
        self._free = total
        self._most = most
        self._number = 0
        self._given_back = asyncio.Event()

    @contextlib.asynccontextmanager
    async def taken(self, count: int) -> AsyncIterator[None]:
        """Waits until there is room for so many bytes, and takes it.

        Raises:
            HTTPServiceUnavailable: Too many wait.
        """
        if self._number >= self._most:
            raise web.HTTPServiceUnavailable(
                text=f"{self._most} requests run or wait; try again later"
            )
        self._number += 1
        try:
            while self._free < count:
                self._given_back.clear()
                await self._given_back.wait()
            self._free -= count
            try:
                yield
            finally:
                self._free += count
                self._given_back.set()
        finally:
            self._number -= 1


def own_hosts(names: Collection[str]) -> Callable[[str], bool]:
    """Returns whether a request's `Host` is this service: an address, or a name that it is known
    by.

    A page in a browser can have its own name lead to this machine (DNS rebinding), but it cannot
    send another name than that.
    """
    known = {"localhost", socket.gethostname().lower(), *(name.lower() for name in names)}

    def is_own(host: str) -> bool:
        match = HOST.fullmatch(host)
        name = match[1].strip("[]").lower() if match else ""
        return name in known or is_address(name)

    return is_own


def is_address(name: str) -> bool:
    """Returns whether a host is given by its number."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def application(
    sandbox: Sandbox, most: RequestLimits, names: Collection[str] = ()
) -> web.Application:
    """Returns the service's two addresses, in front of a sandbox.

    Args:
        names: By which it is reached, in addition to its addresses, `localhost` and the machine's
            own.
    """
    room, is_own = RequestRoom(WAITING, MAX_REQUESTS), own_hosts(names)

    @web.middleware
    async def own(request: web.Request, handler: Handler) -> web.StreamResponse:
        origin = request.headers.get("Origin")  # of a page in a browser
        hosts = [request.host, *([origin.partition("://")[2]] if origin else [])]
        if not all(map(is_own, hosts)):
            raise web.HTTPForbidden(
                text=f"{ascii(hosts)[:200]} is not this service's name; add --names NAME"
            )
        return await handler(request)

    async def run_code(request: web.Request) -> web.Response:
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise web.HTTPUnsupportedMediaType(
                text="send the request as it is, without Content-Encoding"
            )
        if (length := request.content_length) is None:
            raise web.HTTPLengthRequired(text="Content-Length is missing")
        if length > LARGEST_REQUEST_BYTES:
            raise web.HTTPRequestEntityTooLarge(LARGEST_REQUEST_BYTES, length)
        async with room.taken(length):
            return await answer(request)

    async def answer(request: web.Request) -> web.Response:
        try:
            async with asyncio.timeout(SENDING_SECONDS):
                body = await request.read()
        except TimeoutError:
            raise web.HTTPRequestTimeout(
                text=f"the request did not arrive within {SENDING_SECONDS:.0f} s"
            ) from None
        try:
            if request.content_type != "application/json":  # nor may a page in a browser send it
                raise ValueError("expected application/json")
            program = await asyncio.to_thread(
                lambda: RunCode.model_validate_json(body).program(most)
            )
        except pydantic.ValidationError as error:
            return _refusal(
                [
                    {"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]}
                    for e in error.errors()
                ]
            )
        except ValueError as error:
            return _refusal([{"type": "value_error", "loc": ["body"], "msg": str(error)}])
        try:
            answer = answered(await sandbox.run(program))
        except InfrastructureFailure as failure:
            answer = {
                "status": "SandboxError",
                "message": str(failure),
                "run_result": None,
                "files": {},
            }
        answer = {"message": "", "compile_result": None, "executor_pod_name": None, **answer}
        return web.Response(
            body=await asyncio.to_thread(lambda: json.dumps(answer).encode()),
            content_type="application/json",
        )

    async def ping(_: web.Request) -> web.Response:
        return web.json_response("pong")

    service = web.Application(client_max_size=LARGEST_REQUEST_BYTES, middlewares=[own])
    service.add_routes([web.post("/run_code", run_code), web.get("/v1/ping", ping)])
    return service


def _refusal(problems: list[dict[str, Any]]) -> web.Response:
    return web.json_response({"detail": problems}, status=422)


def answered(completed: ProgramResult) -> dict[str, Any]:
    """Returns the result of a program, in the protocol: it has no word for memory, output and
    signals but the exit code."""
    code = completed.code if completed.code is not None else -signal.SIGKILL
    late = completed.status == "time"
    ran = {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": completed.seconds,
        "return_code": None if late else code,
        "stdout": completed.stdout,
        "stderr": completed.stderr
        if late
        else "\n".join(filter(None, [completed.stderr, completed.reason])),
    }
    files = {path: base64.b64encode(content).decode() for path, content in completed.files.items()}
    return {
        "status": "Success" if code == 0 and not late else "Failed",
        "run_result": ran,
        "files": files,
    }


async def serve(
    config: SandboxConfig,
    host: str,
    port: int,
    concurrency: int | None,
    most: RequestLimits,
    names: Collection[str],
    say: Callable[[str, str], None],
) -> None:
    """Serves until SIGINT or SIGTERM.

    Args:
        concurrency: Maximum number of programs at the same time; default: `usable_cores()`.
        names: By which the service is reached (`application`).
        say: Told the address and the level, once requests are answered.

    Raises:
        ConfigurationError: The address is taken or none of this machine, or the sandbox cannot be
            had here.
        InfrastructureFailure: The sandbox cannot be started.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    config = config.model_copy(update={"imports": [*IMPORTS, *config.imports]})
    async with open_sandbox(config, concurrency=concurrency) as sandbox:
        runner = web.AppRunner(
            application(sandbox, most, [host, *names]),
            handler_cancellation=True,
            access_log=None,
            shutdown_timeout=LEAVING_SECONDS,
            auto_decompress=False,
        )
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise ConfigurationError(
                    Problem(
                        "sandbox.port",
                        got=f"--host {host} --port {port}: {error.strerror or error}",
                        fix="choose others",
                        flags=("host", "port"),
                    )
                ) from error
            address, opened = runner.addresses[0][:2]
            shown = f"[{address}]" if ":" in address else address
            say(f"http://{shown}:{opened}", sandbox.isolation)
            await ended.wait()
        finally:
            with contextlib.suppress(TimeoutError):
                await runner.cleanup()
