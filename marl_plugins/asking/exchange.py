"""One exchange with an HTTP server, bounded in time and in bytes; redirects are not followed.

One deadline covers all of it, from connecting to the last byte. The body is counted as it arrives
and decompressed here, within the same bound; httpx itself reads no more than 100 KB of headers.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

import httpx

from marl_plugins.asking.reading import MalformedAnswer
from marl_plugins.core.redaction import shown_url
from marl_plugins.core.version import __version__

MOST_BYTES = 3 * 2**20
"""Of an answer's body, on the wire and decompressed."""
BYTES_OF_A_PART = 256
"""What each part of a body counts besides its bytes, so that a flood of tiny ones ends too."""
IDLE_SECONDS = 30.0
"""Seconds after which a connection that is not used is closed."""


class ConnectionFailure(Exception):
    """No connection, or one that broke."""


@dataclass(frozen=True)
class HttpAnswer:
    """A server's answer; names of headers are found in any case."""

    status: int
    headers: Mapping[str, str]
    data: bytes | bytearray

    @property
    def elsewhere(self) -> str:
        """Where a redirect leads, in words; empty where the answer is none."""
        if not (300 <= self.status < 400 and "location" in self.headers):
            return ""
        target = shown_url(self.headers["location"])[:200]
        return f"redirects to {target!r}, and no redirect is followed"


class HttpConnection:
    """Connections to one server, opened when they are first needed; a proxy in the environment is
    used.

    httpx's transport is used without its client, which would keep cookies, log every address with
    its password, and give up where the environment names a proxy that does not concern us.

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
        self._free: list[httpx.AsyncHTTPTransport] = []
        """Of one connection each: a pool's book-keeping takes time with the square of its
        connections."""

    async def close(self) -> None:
        """Closes what is open; a later exchange opens it again."""
        free, self._free = self._free, []
        for transport in free:
            await transport.aclose()

    async def post(self, path: str, body: Any) -> HttpAnswer:
        """Makes one request, and returns its answer.

        Args:
            body: JSON values.

        Raises:
            TimeoutError: Not all of the answer has come in time.
            ConnectionFailure: There is no connection, or it broke.
            MalformedAnswer: The answer is too large.
        """
        place, mark, query = self.base_url.partition("?")
        url = f"{place.rstrip('/')}/{path}{mark}{query}"
        try:
            async with asyncio.timeout(self.timeout):
                return await self._once(url, json.dumps(body).encode())
        except (httpx.TransportError, httpx.InvalidURL) as error:
            raise ConnectionFailure(str(error) or type(error).__name__) from error

    async def _once(self, url: str, content: bytes) -> HttpAnswer:
        free = self._free
        transport = free.pop() if free else self._open()
        request = httpx.Request("POST", url, headers=self._headers(url), content=content)
        try:
            response = await transport.handle_async_request(request)
            try:
                data = await _body(response)
            finally:
                await response.aclose()
        finally:
            if free is self._free:
                free.append(transport)
            else:  # closed in the meantime
                await transport.aclose()
        encoding = response.headers.get("content-encoding", "")
        return HttpAnswer(response.status_code, response.headers, _decompressed(data, encoding))

    def _open(self) -> httpx.AsyncHTTPTransport:
        """Connections, through the proxy that the environment names.

        Raises:
            ConnectionFailure: It is of a kind that is not supported.
        """
        url, proxies = urlsplit(self.base_url), getproxies()
        direct = proxy_bypass(url.netloc.rpartition("@")[2])
        try:
            return httpx.AsyncHTTPTransport(
                verify=_trusted(),
                proxy=None if direct else proxies.get(url.scheme) or proxies.get("all"),
                limits=httpx.Limits(keepalive_expiry=IDLE_SECONDS),
            )
        except (ValueError, ImportError) as error:
            raise ConnectionFailure(f"a proxy that the environment names: {error}") from None

    def _headers(self, url: str) -> dict[str, str]:
        user = urlsplit(url).netloc.rpartition("@")[0]
        basic = base64.b64encode(unquote(user).encode()).decode()
        return {
            "Accept": "application/json",
            "Accept-Encoding": "identity",
            "Authorization": f"Basic {basic}" if user else f"Bearer {self.key}",
            "Content-Type": "application/json",
            "User-Agent": f"openrlhf-marl/{__version__}",
        }


async def _body(response: httpx.Response) -> bytearray:
    """Returns what an answer holds after its headers.

    Raises:
        MalformedAnswer: It is too large.
    """
    data, counted = bytearray(), 0
    async for part in response.aiter_raw():
        data += part
        counted += len(part) + BYTES_OF_A_PART
        if counted > MOST_BYTES:
            raise MalformedAnswer(
                f"an answer of more than {MOST_BYTES // 2**20} MB, or of too many parts"
            )
        await asyncio.sleep(0)  # what has arrived already is read without waiting
    return data


@cache
def _trusted() -> ssl.SSLContext:
    """Reading the certificates takes a moment, once for all connections."""
    return httpx.create_ssl_context(trust_env=False)


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
