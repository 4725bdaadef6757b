"""Real services on loopback that speak SandboxFusion's protocol: ours, theirs where it is there,
and ones that misbehave.

SANDBOX_FUSION_URL        a SandboxFusion that runs already
SANDBOX_FUSION_CHECKOUT   a checkout of it, with a virtual environment in `.venv` that has fastapi,
                          uvicorn, structlog, psutil, aiofiles, aiohttp, tenacity,
                          databases[aiosqlite], pyyaml and pytest; it is started by the tests
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.request
from pathlib import Path

CONFIGURATION = """
    dataset: {database: {backend: {type: none}, cache: {path: memory, sources: []}}, registry: []}
    sandbox: {isolation: none, cleanup_process: false, restore_bash: false, max_concurrency: 34}
    common: {logging_color: false}
"""


@contextlib.contextmanager
def ours(*words):
    """`openrlhf sandbox serve` as a process; its address and the process."""
    command = [sys.executable, "-m", "marl_plugins", "sandbox", "serve", "--port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        yield line.split()[1].rstrip(","), process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        process.stdout.close()


@contextlib.contextmanager
def theirs():
    """SandboxFusion's own server; its address."""
    if url := os.environ.get("SANDBOX_FUSION_URL"):
        yield url
        return
    checkout = Path(os.environ["SANDBOX_FUSION_CHECKOUT"]).absolute()
    venv = checkout / ".venv"
    for folder in (venv / "condabin", checkout / "docs" / "build"):  # it looks for them
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place, open(f"{place}/log", "wb") as log:
        Path(place, "marl.yaml").write_text(textwrap.dedent(CONFIGURATION))
        port = free_port()
        process = subprocess.Popen(
            [
                venv / "bin/python",
                "-m",
                "uvicorn",
                "sandbox.server.server:app",
                "--port",
                str(port),
            ],
            cwd=checkout,
            env={**os.environ, "SANDBOX_CONFIG": f"{place}/marl"},
            stdout=log,
            stderr=log,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            wait_for(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(60)


def free_port():
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return listening.getsockname()[1]


def wait_for(url, process):
    until = time.monotonic() + 120
    while time.monotonic() < until and process.poll() is None:
        with (
            contextlib.suppress(OSError),
            urllib.request.urlopen(f"{url}/v1/ping", timeout=5) as answer,
        ):
            assert answer.read() == b'"pong"'
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} does not answer")


SERVERS = {"ours": lambda: map_first(ours("--concurrency", "8"))}
if os.environ.get("SANDBOX_FUSION_URL") or os.environ.get("SANDBOX_FUSION_CHECKOUT"):
    SERVERS["theirs"] = theirs


@contextlib.contextmanager
def map_first(opened):
    with opened as (first, *_):
        yield first


@contextlib.asynccontextmanager
async def answering(answer):
    """A server on loopback that sends what `answer(path, body, number, head)` gives or awaits, and
    closes the connection.

    Gives its address, and the paths that it was asked for.
    """
    taken = []

    async def serve(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (
                    int(line[15:])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                ),
                0,
            )
            body = await reader.readexactly(length)
            taken.append(head.split()[1].decode())
            given = answer(head.split()[1].decode(), body, len(taken), head.decode())
            writer.write(await given if asyncio.iscoroutine(given) else given)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 20)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", taken
    finally:
        server.close()


def http(body, status=200, kind="application/json", headers=""):
    """An answer as bytes."""
    body = body if isinstance(body, bytes) else body.encode()
    return (
        f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: "
        f"{len(body)}\r\n{headers}\r\n".encode()
        + body
    )
