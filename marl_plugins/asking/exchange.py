"""One exchange with an HTTP server, bounded in time, in bytes and in where it may lead.

    connect - request - status - headers - body      one deadline and one allowance of bytes over
        all of it

What arrives is handed on in small portions with a pause after each, so that an answer that floods
us, with whatever part of HTTP it likes, takes processor time from the run but never holds it up.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpcore

from marl_plugins.asking.reading import MalformedAnswer
from marl_plugins.core.redaction import shown_url
from marl_plugins.core.version import __version__

MOST_BYTES = 3 * 2**20
"""Of one answer: on the wire, headers included, and of its body when it is decompressed."""
PORTION_BYTES, BODY_PORTION_BYTES = 1024, 65536
"""Bytes that are read at once. All that is taken apart of one portion before the body, in lines of
a few bytes, takes milliseconds; the parts of a body come one by one."""
MOST_PARTS = 10_000
"""Of the body of one answer."""
REDIRECTS = 3
IDLE_SECONDS = 30.0
"""Seconds after which a connection that is not used is closed."""


class ConnectionFailure(Exception):
    """No connection, or one that broke."""


class Redirect(Exception):
    """The server sends us where the question must not go."""


@dataclass(frozen=True)
class HttpAnswer:
    """A server's answer; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    data: bytes | bytearray


class HttpConnection:
    """Connections to one server, opened when they are first needed; a proxy in the environment is
    used.

    Args:
        base_url: What the paths of requests are added to; a user and password in it take the key's
            place.
        key: Sent as a bearer token.
        timeout: Seconds of one exchange, from connecting to the last byte.
    """

    def __init__(self, base_url: str, key: str, timeout: float):
        self.base_url = base_url
        self.key = key
        self.timeout = timeout
        self._trusted: ssl.SSLContext | None = None
        self._free: list[httpcore.AsyncConnectionPool] = []
        """Of one connection each: a pool's own book-keeping takes time with the square of its
        connections."""
        self._turns = asyncio.Lock()

    async def close(self) -> None:
        """Closes what is open; a later exchange opens it again."""
        free, self._free, self._turns = self._free, [], asyncio.Lock()
        for pool in free:
            await pool.aclose()

    async def exchange(self, method: str, path: str, body: Any = None) -> HttpAnswer:
        """Makes one request, and returns its answer.

        Args:
            body: JSON values.

        Raises:
            TimeoutError: Not all of the answer has come in time.
            ConnectionFailure: There is no connection, or it broke.
            Redirect: To another server, without encryption, or in circles.
            MalformedAnswer: The answer is too large.
        """
        place, mark, query = self.base_url.partition("?")
        url = f"{place.rstrip('/')}/{path}{mark}{query}"
        content = b"" if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(self.timeout):
                for _ in range(1 + REDIRECTS):
                    answer = await self._once(method, urlsplit(url), content)
                    if answer.status not in (301, 302, 303, 307, 308):
                        return answer
                    url = _followed(url, answer.headers.get("location", ""))
        except (
            httpcore.NetworkError,
            httpcore.ProtocolError,
            httpcore.ProxyError,
            httpcore.UnsupportedProtocol,
        ) as error:
            raise ConnectionFailure(str(error) or type(error).__name__) from error
        raise Redirect(f"redirects more than {REDIRECTS} times, at last to {shown_url(url)}")

    async def _once(self, method: str, url: SplitResult, content: bytes) -> HttpAnswer:
        free = self._free
        pool = free.pop() if free else self._open(url)
        try:
            request = pool.stream(
                method, _target(url), headers=self._headers(url, content), content=content
            )
            async with request as response:
                data = await _body(response)
        finally:
            if free is self._free:
                free.append(pool)
            else:  # closed in the meantime
                await pool.aclose()
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in response.headers
        }
        async with (
            self._turns
        ):  # one answer a turn of the event loop: reading a large one takes a moment
            await asyncio.sleep(0)
            return HttpAnswer(
                response.status, headers, _decompressed(data, headers.get("content-encoding", ""))
            )

    def _open(self, url: SplitResult) -> httpcore.AsyncConnectionPool:
        """A connection, through the proxy that the environment names."""
        if url.scheme == "https" and self._trusted is None:
            self._trusted = httpcore.default_ssl_context()
        proxy, backend = _proxy_of(url), _PortionedBackend()
        if proxy is None:
            return httpcore.AsyncConnectionPool(
                self._trusted, keepalive_expiry=IDLE_SECONDS, network_backend=backend
            )
        user = (unquote(proxy.username), unquote(proxy.password or "")) if proxy.username else None
        return httpcore.AsyncHTTPProxy(
            _target(proxy),
            user,
            ssl_context=self._trusted,
            keepalive_expiry=IDLE_SECONDS,
            network_backend=backend,
        )

    def _headers(self, url: SplitResult, content: bytes) -> list[tuple[str, str]]:
        user, _, host = url.netloc.rpartition("@")
        basic = base64.b64encode(unquote(user).encode()).decode()
        return [
            ("Host", host),
            ("Accept", "application/json"),
            ("Accept-Encoding", "identity"),
            ("Authorization", f"Basic {basic}" if user else f"Bearer {self.key}"),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(content))),
            ("User-Agent", f"openrlhf-marl/{__version__}"),
        ]


async def _body(response: httpcore.Response) -> bytearray:
    """Returns what an answer holds after its headers.

    Raises:
        MalformedAnswer: It comes in too many parts.
    """
    stream = response.extensions.get("network_stream")
    if isinstance(stream, _PortionedStream):
        stream.portion = BODY_PORTION_BYTES
    data, parts = bytearray(), 0
    async for part in response.aiter_stream():
        data += part
        parts += 1
        if parts > MOST_PARTS:
            raise MalformedAnswer(
                f"an answer in more than {MOST_PARTS} parts (HTTP {response.status})"
            )
        await asyncio.sleep(0)
    return data


def _target(url: SplitResult) -> httpcore.URL:
    path = quote(url.path, safe="/%:@!$&'()*+,;=~") + (
        f"?{quote(url.query, safe='/?%:@!$&()*+,;=~')}" if url.query else ""
    )
    host = (url.hostname or "").encode("idna" if not (url.hostname or "").isascii() else "ascii")
    return httpcore.URL(scheme=url.scheme.encode(), host=host, port=url.port, target=path.encode())


def _proxy_of(url: SplitResult) -> SplitResult | None:
    """The proxy that the environment names for an address.

    Raises:
        ConnectionFailure: It is of a kind that is not supported.
    """
    proxies = getproxies()
    proxy = (
        None
        if proxy_bypass(url.netloc.rpartition("@")[2])
        else proxies.get(url.scheme) or proxies.get("all")
    )
    if not proxy:
        return None
    place = urlsplit(proxy)
    if place.scheme not in ("http", "https"):
        raise ConnectionFailure(
            f"a proxy of kind {place.scheme!r} is named in the environment; only http and https "
            "ones are supported"
        )
    return place


class _PortionedBackend(httpcore.AnyIOBackend):
    """Opens connections that are read in portions."""

    async def connect_tcp(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _PortionedStream(await super().connect_tcp(*args, **kwargs))


class _PortionedStream(httpcore.AsyncNetworkStream):
    """A connection that is read in portions, and only so far for each request that is written.

    Args:
        stream: Does the reading and writing.
    """

    def __init__(self, stream: httpcore.AsyncNetworkStream):
        self.stream = stream
        self.portion = PORTION_BYTES
        self.received = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109  httpcore's interface
        await asyncio.sleep(0)  # what has arrived already is read without waiting
        data = await self.stream.read(min(max_bytes, self.portion), timeout)
        self.received += len(data)
        if self.received > MOST_BYTES:
            raise MalformedAnswer(f"an answer of more than {MOST_BYTES // 2**20} MB")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109
        self.portion, self.received = PORTION_BYTES, 0
        await self.stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self.stream.aclose()

    async def start_tls(self, *args: Any, **kwargs: Any) -> httpcore.AsyncNetworkStream:
        return _PortionedStream(await self.stream.start_tls(*args, **kwargs))

    def get_extra_info(self, info: str) -> Any:
        return self.stream.get_extra_info(info)


def _followed(url: str, location: str) -> str:
    """Returns the address to which a redirect leads.

    Raises:
        Redirect: Nowhere, or where the question and its key must not go: only the same server may
            be meant, or its encrypted side.
    """
    try:
        target = urljoin(url, location)
        here, there = urlsplit(url), urlsplit(target)
        same = (here.scheme, here.port) == (there.scheme, there.port) or (
            here.scheme,
            there.scheme,
        ) == ("http", "https")
        same = same and here.hostname == there.hostname and bool(location)
    except ValueError:  # a port or a bracket that is none
        target, same = location, False
    if not same:
        raise Redirect(
            f"redirects to {shown_url(target)[:200]!r}, which is not the same server, or not "
            "encrypted; no question is sent there"
        )
    user, mark, _ = here.netloc.rpartition("@")
    return there._replace(netloc=user + mark + there.netloc.rpartition("@")[2]).geturl()


def _decompressed(data: bytearray, encoding: str) -> bytes | bytearray:
    """The body of a server that compresses although it was asked not to, never more than
    `MOST_BYTES` of it.

    Raises:
        MalformedAnswer: It is larger, damaged, or compressed in a way that cannot be bounded.
    """
    if encoding.strip().lower() in ("", "identity"):
        return data
    if encoding.strip().lower() not in ("gzip", "x-gzip", "deflate"):
        raise MalformedAnswer(
            f"an answer compressed as {encoding[:40]!r}, although it was asked for uncompressed"
        )
    inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        plain = inflate.decompress(data, MOST_BYTES)
    except zlib.error as error:
        raise MalformedAnswer(f"a compressed answer that is damaged: {error}") from None
    if not inflate.eof:
        raise MalformedAnswer(
            f"an answer that is cut off, or of more than {MOST_BYTES // 2**20} MB when it is "
            "decompressed"
        )
    return plain
