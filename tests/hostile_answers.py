"""Kinds of answers that nobody wants from a coach's endpoint, and a raw HTTP server on loopback
that gives them.

A kind is chosen by the path: `http://127.0.0.1:PORT/KIND/v1`. All of them run in
`tests/test_coach_hostile.py` with short time-outs, and with the default ones in
`benchmarks/hostile_coach.py`.
"""

import asyncio
import contextlib
import gzip
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from openai_server import nonce_in, verdict

RESET = b"the connection is reset here"
BOMB = gzip.compress(b" " * 64 * 2**20)
MEGABYTE = 2**20


@dataclass(frozen=True)
class Asked:
    """A request: its body, its key, and where the server is."""

    body: dict
    key: str
    host: str

    @property
    def nonce(self) -> str:
        return nonce_in(self.body)

    @property
    def right(self) -> str:
        """The verdict that it asks for: a score of 7."""
        return verdict(self.body, 7)


@dataclass(frozen=True)
class Kind:
    """One way of answering.

    Args:
        answer: Makes the bytes on the wire, at once or over time.
        becomes: What has to become of the judgement: `verdict` (of 7), `missing` or `paused`.
        slow: It ends only by the client's own limits.
    """

    name: str
    answer: Callable[[Asked], bytes | AsyncIterator[bytes]]
    becomes: str
    slow: bool = False


def http(body: Any, status: str = "200 OK", *headers: str) -> bytes:
    """An answer over HTTP; values that are not bytes are sent as JSON."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [
        f"HTTP/1.1 {status}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def chat(
    asked: Asked, text: Any = None, message: Any = None, choice: Any = None, **top: Any
) -> dict:
    """An answer in the protocol, with parts of it replaced."""
    said = {
        "role": "assistant",
        "content": asked.right if text is None else text,
        **(message or {}),
    }
    chosen = {"index": 0, "message": said, "finish_reason": "stop", **(choice or {})}
    usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [chosen],
        "usage": usage,
        **top,
    }


def judged(asked: Asked, **fields: Any) -> dict:
    """A structured verdict, with fields of it replaced."""
    return {"nonce": asked.nonce, "explanation": "Fine.", "criteria": [], "score": 7, **fields}


# What is sent over time.


async def drip(data: bytes, pause: float = 0.05) -> AsyncIterator[bytes]:
    for byte in data:
        yield bytes([byte])
        await asyncio.sleep(pause)
    await asyncio.sleep(3600)


async def forever(start: bytes, again: bytes, pause: float = 0.0) -> AsyncIterator[bytes]:
    yield start
    while True:
        yield again
        await asyncio.sleep(pause)


async def then_silence(data: bytes) -> AsyncIterator[bytes]:
    yield data
    await asyncio.sleep(3600)


async def then_reset(data: bytes) -> AsyncIterator[bytes]:
    yield data
    await asyncio.sleep(0.05)
    yield RESET


LENGTHY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000000000\r\n\r\n"
)
CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"


def slow_kinds() -> list[Kind]:
    """Answers that do not end."""
    kinds = {
        "silent": lambda a: then_silence(b""),
        "silent_after_the_status": lambda a: then_silence(b"HTTP/1.1 200 OK\r\n"),
        "silent_after_the_headers": lambda a: then_silence(LENGTHY),
        "silent_in_the_body": lambda a: then_silence(LENGTHY + b'{"choices": [{'),
        "silent_chunk": lambda a: then_silence(CHUNKED + b"ffff\r\n"),
        "length_too_large": lambda a: then_silence(
            http(chat(a)).replace(b"Content-Length: ", b"Content-Length: 9")
        ),
        "drip": lambda a: drip(http(chat(a)), 0.5),
        "drip_body": lambda a: forever(LENGTHY, b" ", 0.02),
        "drip_headers": lambda a: drip(b"HTTP/1.1 200 OK\r\nX-Header: " + b"x" * 10**6),
        "drip_many_headers": lambda a: forever(b"HTTP/1.1 200 OK\r\n", b"X-Header: x\r\n", 0.05),
        "drip_chunks": lambda a: forever(CHUNKED, b"1\r\n \r\n", 0.02),
        "drip_status": lambda a: drip(b"HTTP/1.1 200 " + b"O" * 10**6),
        "status_100_forever": lambda a: forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        "status_100_slowly": lambda a: forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.05),
        "status_102_slowly": lambda a: forever(b"", b"HTTP/1.1 102 Processing\r\n\r\n", 0.05),
        "busy_until_a_far_date": lambda a: http(
            {}, "429 Busy", "Retry-After: Fri, 31 Dec 9999 23:59:59 GMT"
        ),
        "busy_for_a_year": lambda a: http({}, "503 Busy", "Retry-After: 31536000"),
    }
    return [Kind(name, answer, "missing", slow=True) for name, answer in kinds.items()]


def endless_kinds() -> list[Kind]:
    """Answers that are too large, in bytes or in parts."""
    compressed = "Content-Encoding: gzip"
    kinds = {
        "endless": lambda a: forever(LENGTHY, b"x" * 65536),
        "endless_string": lambda a: forever(
            LENGTHY + b'{"choices": [{"message": {"content": "', b"a" * 65536
        ),
        "endless_spaces": lambda a: forever(LENGTHY, b" " * 65536),
        "endless_chunks": lambda a: forever(CHUNKED, b"10000\r\n" + b"x" * 65536 + b"\r\n"),
        "endless_error": lambda a: forever(LENGTHY.replace(b"200 OK", b"500 Oops"), b"x" * 65536),
        "endless_without_a_length": lambda a: forever(b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65536),
        "chunks_of_one_byte": lambda a: forever(CHUNKED, b"1\r\n \r\n" * 5000),
        "chunk_extensions": lambda a: forever(CHUNKED, b"1;" + b"x" * 20000 + b"\r\n \r\n"),
        "endless_header": lambda a: forever(b"HTTP/1.1 200 OK\r\nX-Header: ", b"x" * 65536),
        "endless_headers": lambda a: forever(b"HTTP/1.1 200 OK\r\n", b"X-Header: x\r\n" * 5000),
        "endless_status": lambda a: forever(b"HTTP/1.1 200 ", b"O" * 65536),
        "endless_trailers": lambda a: forever(CHUNKED + b"0\r\n", b"X-Header: x\r\n" * 5000),
        "gzip_bomb": lambda a: http(BOMB, "200 OK", compressed),
        "gzip_bomb_endless": lambda a: forever(
            LENGTHY.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n"), BOMB
        ),
        "gzip_bomb_in_an_error": lambda a: http(BOMB, "500 Oops", compressed),
        "deflate_bomb": lambda a: http(
            zlib.compress(b" " * 64 * MEGABYTE), "200 OK", "Content-Encoding: deflate"
        ),
        "gzip_twice": lambda a: http(
            gzip.compress(gzip.compress(b"{}")), "200 OK", "Content-Encoding: gzip, gzip"
        ),
        "gzip_of_nothing": lambda a: http(b"", "200 OK", compressed),
        "gzip_cut_off": lambda a: http(
            gzip.compress(b'{"a": 1}' * 1000)[:50], "200 OK", compressed
        ),
        "gzip_that_is_none": lambda a: http(chat(a), "200 OK", compressed),
        "brotli": lambda a: http(b"\x8b\x00\x80", "200 OK", "Content-Encoding: br"),
        "unknown_encoding": lambda a: http(chat(a), "200 OK", "Content-Encoding: \x1b[2J"),
        "body_of_5_MB": lambda a: http(chat(a, "x" * 5 * MEGABYTE)),
        "text_of_a_megabyte": lambda a: http(chat(a, "x" * MEGABYTE)),
        "values": lambda a: http(b"[" + b"1," * 10**6 + b"1]"),
        "lists": lambda a: http(b"[" + b"[]," * 10**6 + b"1]"),
        "objects": lambda a: http(b"[" + b"{}," * 10**6 + b"1]"),
        "keys": lambda a: http(("{" + ",".join(f'"{n}":0' for n in range(300_000)) + "}").encode()),
        "nested_lists": lambda a: http(b"[" * 100_000),
        "nested_objects": lambda a: http(b'{"a":' * 100_000),
        "nested_closed": lambda a: http(b"[" * 50_000 + b"]" * 50_000),
        "nested_usage": lambda a: http(b'{"usage":' + b"[" * 900 + b"]" * 900 + b',"choices":[]}'),
        "digits": lambda a: http(b'{"choices": ' + b"9" * 2 * MEGABYTE + b"}"),
        "fraction": lambda a: http(b'{"choices": 0.' + b"9" * 2 * MEGABYTE + b"}"),
    }
    return [Kind(name, answer, "missing") for name, answer in kinds.items()]


def wire_kinds() -> list[Kind]:
    """Answers that are not HTTP, or not quite."""
    missing = {
        "reset": lambda a: then_reset(b""),
        "reset_in_the_headers": lambda a: then_reset(b"HTTP/1.1 200 OK\r\nContent-"),
        "reset_in_the_body": lambda a: then_reset(LENGTHY + b'{"choices": [{"mess'),
        "closed": lambda a: b"",
        "closed_in_the_body": lambda a: LENGTHY + b"{",
        "closed_in_a_chunk": lambda a: CHUNKED + b"ff\r\n{",
        "garbage": lambda a: bytes(range(256)) * 100,
        "text": lambda a: b"Welcome to the coach!\r\n\r\n",
        "tls": lambda a: b"\x15\x03\x01\x00\x02\x02\x28",
        "http2": lambda a: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "status_abc": lambda a: b"HTTP/1.1 abc OK\r\n\r\n",
        "status_99": lambda a: b"HTTP/1.1 099 OK\r\n\r\n",
        "status_1000": lambda a: b"HTTP/1.1 1000 OK\r\n\r\n",
        "control_characters_in_the_status": lambda a: (
            b"HTTP/1.1 200 \x1b[2J\x1b]0;title\x07\r\n\r\n"
        ),
        "length_negative": lambda a: b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n{}",
        "length_of_letters": lambda a: b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n{}",
        "two_lengths": lambda a: (
            b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{} "
        ),
        "length_of_5000_digits": lambda a: (
            b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n{}"
        ),
        "length_too_small": lambda a: http(chat(a)).replace(
            b"Content-Length: ", b"Content-Length: 0000000001\r\nX: "
        ),
        "chunk_of_no_size": lambda a: CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n",
        "chunk_of_a_huge_size": lambda a: CHUNKED + b"f" * 20 + b"\r\n{}\r\n",
        "header_without_a_name": lambda a: b"HTTP/1.1 200 OK\r\n: x\r\n\r\n{}",
        "header_with_control_characters": lambda a: b"HTTP/1.1 200 OK\r\nX: \x00\x1b[2J\r\n\r\n{}",
        "header_of_a_megabyte": lambda a: http(chat(a), "200 OK", "X-Header: " + "x" * MEGABYTE),
        "upgrade": lambda a: (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"
        ),
        "no_content": lambda a: b"HTTP/1.1 204 No Content\r\n\r\n",
    }
    right = {
        "right": lambda a: http(chat(a)),
        "right_in_chunks": lambda a: (
            CHUNKED
            + b"".join(b"1\r\n" + bytes([b]) + b"\r\n" for b in json.dumps(chat(a)).encode())
            + b"0\r\n\r\n"
        ),
        "right_compressed": lambda a: http(
            gzip.compress(json.dumps(chat(a)).encode()), "200 OK", "Content-Encoding: gzip"
        ),
        "right_without_a_length": lambda a: (
            b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(chat(a)).encode()
        ),
        "right_of_another_type": lambda a: http(chat(a)).replace(
            b"application/json", b"text/html; charset=utf-7"
        ),
        "right_after_100": lambda a: b"HTTP/1.1 100 Continue\r\n\r\n" + http(chat(a)),
        "right_after_2_MB_of_spaces": lambda a: http(
            b" " * 2 * MEGABYTE + json.dumps(chat(a)).encode()
        ),
        "right_with_cookies": lambda a: http(
            chat(a), "200 OK", *(f"Set-Cookie: c{n}={'x' * 1000}" for n in range(50))
        ),
        "right_with_status_201": lambda a: http(chat(a), "201 Created"),
        "right_with_latin_headers": lambda a: http(chat(a), "200 OK", "X-Header: \xe9\xff"),
        "right_in_utf_16": lambda a: http(json.dumps(chat(a)).encode("utf-16")),
        "right_with_a_byte_order_mark": lambda a: http(
            b"\xef\xbb\xbf" + json.dumps(chat(a)).encode()
        ),
    }
    return [Kind(n, f, "missing") for n, f in missing.items()] + [
        Kind(n, f, "verdict") for n, f in right.items()
    ]


def error(message: Any, code: Any = None) -> dict:
    return {"error": {"message": message, "type": "x", "code": code}}


def status_kinds() -> list[Kind]:
    """Errors, reported in every way."""
    kinds = {
        f"status_{status}": Kind(
            f"status_{status}", lambda a, s=status: http(error("not now"), f"{s} Oops"), becomes
        )
        for becomes, numbers in {
            "missing": (408, 409, 413, 429, 500, 501, 502, 503, 504, 507, 511, 520, 599, 999),
            "paused": (300, 304, 305, 400, 401, 402, 403, 404, 405, 410, 418, 422, 431, 451),
        }.items()
        for status in numbers
    }
    waits = (
        "0",
        "-5",
        "nan",
        "inf",
        "1e400",
        "soon",
        "0" * 90_000,
        "0, 0",
        "\xe9",
        "1e-400",
        "Mon, 01 Jan 0001 00:00:00 GMT",
    )
    waits += (
        "Wed, 21 Oct 2015 07:28:00 GMT",
        "Mon, 01 Jan 99999999999999999999 00:00:00 GMT",
        "Mon, 99 Foo 12345 99:99:99 +9999",
    )
    for number, wait in enumerate(waits):
        name = f"busy_with_retry_after_{number}"
        kinds[name] = Kind(
            name,
            lambda a, w=wait: http(error("slow down"), "429 Busy", f"Retry-After: {w}"),
            "missing",
        )
    bodies = {
        "context_length": (
            "paused",
            "400 Bad",
            lambda a: error("too long", "context_length_exceeded"),
        ),
        "content_filter": (
            "paused",
            "400 Bad",
            lambda a: error("content management policy", "content_filter"),
        ),
        "quota": ("paused", "429 Busy", lambda a: error("pay", "insufficient_quota")),
        "quota_with_200": ("paused", "200 OK", lambda a: error("pay", "insufficient_quota")),
        "quota_as_type": (
            "paused",
            "200 OK",
            lambda a: {"error": {"type": "insufficient_quota", "code": None}},
        ),
        "error_with_200": ("missing", "200 OK", lambda a: error("I am overloaded", 429)),
        "error_of_text": ("missing", "200 OK", lambda a: {"error": "I am overloaded"}),
        "error_of_2_MB": ("missing", "500 Oops", lambda a: error("x" * 2 * MEGABYTE)),
        "error_of_lists": ("missing", "500 Oops", lambda a: error([[["x"]]], [])),
        "error_nested": ("missing", "500 Oops", lambda a: b'{"error":' * 50_000),
        "error_of_html": ("missing", "502 Oops", lambda a: b"<html>\x1b[2J</html>"),
        "error_of_no_text": ("missing", "503 Oops", lambda a: b"\xff\xfe\x00"),
        "error_in_detail": (
            "paused",
            "422 Bad",
            lambda a: {"detail": [{"loc": ["body"], "msg": "extra field"}]},
        ),
        "error_of_maximums": ("paused", "400 Bad", lambda a: error("maximum " * 100_000)),
    }
    for name, (becomes, status, body) in bodies.items():
        kinds[name] = Kind(name, lambda a, s=status, b=body: http(b(a), s), becomes)
    return list(kinds.values())


def redirect_kinds() -> list[Kind]:
    """Somewhere else."""

    def to(location: str, status: str = "307 Moved") -> Callable[[Asked], bytes]:
        return lambda a: http(
            b"", status, "Location: " + location.replace("HOST", a.host).replace("KEY", a.key)
        )

    places = {
        "to_another_host": to("http://localhost.localdomain/v1?key=KEY"),
        "to_another_port": to("http://127.0.0.1:9/v1"),
        "to_another_name": to("http://localhost:9/v1", "301 Moved"),
        "to_a_file": to("file:///etc/passwd"),
        "to_no_scheme": to("//evil.example/v1", "302 Found"),
        "to_itself": to("/to_itself/v1/chat/completions"),
        "to_an_address_that_is_none": to("http://[::1"),
        "to_control_characters": to("http://evil.example/\x85\x9b2J"),
        "to_nowhere": to(""),
        "to_a_script": to("javascript:alert(1)"),
        "to_a_far_port": to("http://127.0.0.1:99999999/v1"),
        "to_the_right_path": to("/right/v1/chat/completions", "308 Moved"),
        "to_the_right_address": to("http://u:p@HOST/right/v1/chat/completions", "301 Moved"),
    }
    return [Kind(n, f, "paused") for n, f in places.items()]


def form_kinds() -> list[Kind]:
    """JSON that is not the protocol's, and some that is, with parts that nobody expects."""
    bodies: dict[str, Callable[[Asked], Any]] = {
        "empty": lambda a: b"",
        "null": lambda a: None,
        "true": lambda a: True,
        "number": lambda a: 7,
        "string": lambda a: a.right,
        "list": lambda a: [chat(a)],
        "html": lambda a: b"<html><body>Sign in</body></html>",
        "xml": lambda a: b"<?xml version='1.0'?><score>7</score>",
        "events": lambda a: b"data: " + json.dumps(chat(a)).encode() + b"\n\ndata: [DONE]\n\n",
        "cut_off": lambda a: json.dumps(chat(a)).encode()[:-10],
        "two_answers": lambda a: json.dumps(chat(a)).encode() * 2,
        "not_utf_8": lambda a: json.dumps(chat(a)).encode().replace(b"x", b"\xff"),
        "raw_control_characters": lambda a: (
            json.dumps(chat(a)).encode().replace(b"fine", b"\x00\x1b")
        ),
        "no_number": lambda a: json.dumps(chat(a, usage={"prompt_tokens": float("nan")})).encode(),
        "infinity": lambda a: json.dumps(chat(a, created=float("inf"))).encode(),
        **{
            f"choices_{number}": lambda a, c=choices: chat(a, choices=c)
            for number, choices in enumerate(
                (None, {}, [], [None], [7], ["x"], [[]], [{}], "choices", True)
            )
        },
        **{
            f"message_{number}": lambda a, m=message: chat(a, choice={"message": m})
            for number, message in enumerate((None, [], "SCORE: 7", 7, {}, [{"content": "x"}]))
        },
        **{
            f"content_{number}": lambda a, c=content: chat(a, message={"content": c})
            for number, content in enumerate(
                (None, 7, True, [], {}, [{"type": "text", "text": "SCORE: 7"}], "")
            )
        },
        "tool_calls_alone": lambda a: chat(
            a, message={"content": None, "tool_calls": [{"function": {"arguments": a.right}}]}
        ),
        "reasoning_alone": lambda a: chat(
            a, message={"content": None, "reasoning_content": a.right}
        ),
        "refusal": lambda a: chat(a, message={"refusal": "I will not."}),
        "refusal_of_a_list": lambda a: chat(a, message={"refusal": [["no"]] * 1000}),
        "cut_off_by_its_length": lambda a: chat(a, choice={"finish_reason": "length"}),
        "filtered": lambda a: chat(a, choice={"finish_reason": "content_filter"}),
    }
    usages = (
        None,
        [],
        "many",
        7,
        {},
        {"prompt_tokens": -5},
        {"prompt_tokens": 10**400},
        {"prompt_tokens": 1e30},
    )
    usages += (
        {"prompt_tokens": "many"},
        {"prompt_tokens": True},
        {"prompt_tokens": 2.5},
        {"prompt_tokens": [[]]},
    )
    right: dict[str, Callable[[Asked], Any]] = {
        **{
            f"usage_{number}": lambda a, u=usage: chat(a, usage=u)
            for number, usage in enumerate(usages)
        },
        "usage_beyond_floats": lambda a: (
            json.dumps(chat(a)).encode().replace(b'"prompt_tokens": 100', b'"prompt_tokens": 1e400')
        ),
        "model_of_another_name": lambda a: chat(a, model="\x1b[2Jsome-other-model"),
        "model_of_no_text": lambda a: chat(a, model=[7]),
        "model_of_a_megabyte": lambda a: chat(a, model="x" * MEGABYTE),
        "finish_of_no_text": lambda a: chat(a, choice={"finish_reason": [7]}),
        "many_choices": lambda a: chat(a, choices=chat(a)["choices"] * 100),
    }
    return [
        Kind(name, lambda a, b=body: http(b(a)), "missing") for name, body in bodies.items()
    ] + [Kind(name, lambda a, b=body: http(b(a)), "verdict") for name, body in right.items()]


def verdict_kinds() -> list[Kind]:
    """Texts that are no verdict, and a few that are."""
    texts: dict[str, Callable[[Asked], str]] = {
        "no_verdict": lambda a: "It was fine, a good seven.",
        "fences": lambda a: "```\n" * 100_000,
        "fences_that_close": lambda a: "```json\n" + "\n```" * 100_000,
        "line_feeds": lambda a: "\n" * 400_000,
        "nonces": lambda a: f"{a.nonce}\n" * 50_000,
        "nested_text": lambda a: "[" * 100_000,
        "objects_in_a_text": lambda a: '{"a":{}' + ',"a":{}' * 60_000 + "}",
        "echo_of_the_prompt": lambda a: a.body["messages"][0]["content"],
        "echo_of_the_request": lambda a: json.dumps(a.body),
        "something_around_it": lambda a: f"Here it is: {a.right}",
        "twice": lambda a: a.right * 2,
        "lines_with_a_number_over_10": lambda a: f"SCORE {a.nonce}: 42",
        "no_nonce": lambda a: json.dumps({"score": 10}),
        "control_characters": lambda a: "\x1b[2J\x1b]0;title\x07\x9b31m\u202e",
        "half_a_pair": lambda a: "\ud83d" * 1000,
    }
    fields: dict[str, dict] = {
        "wrong_nonce": {"nonce": "00000000"},
        "score_11": {"score": 11},
        "score_negative": {"score": -0.1},
        "score_of_text": {"score": "10"},
        "score_true": {"score": True},
        "score_null": {"score": None},
        "score_list": {"score": [10]},
        "score_of_400_digits": {"score": 10**400},
        "reward_beside_it": {"reward": 10},
        "criteria_null": {"criteria": None},
        "criteria_number": {"criteria": 7},
        "criteria_of_names": {"criteria": ["a"]},
        "criteria_without_a_name": {"criteria": [{"name": ["a"], "score": 1}]},
        "criteria_over_10": {"criteria": [{"name": "a", "score": 70}]},
        "explanation_list": {"explanation": [["x"]]},
        "explanation_number": {"explanation": 7},
        "nested_field": {"x": {"y": [[[]]]}},
    }
    right: dict[str, Callable[[Asked], str]] = {
        "fenced": lambda a: f"```json\n{a.right}\n```",
        "explanation_null": lambda a: json.dumps(judged(a, explanation=None)),
        "explanation_of_300_KB": lambda a: json.dumps(judged(a, explanation="x" * 300_000)),
        "explanation_of_control_characters": lambda a: json.dumps(
            judged(a, explanation="\x1b[2J\x9b\u202e\x07")
        ),
        "explanation_with_the_key": lambda a: json.dumps(
            judged(a, explanation=f"the key is {a.key}")
        ),
        "many_criteria": lambda a: json.dumps(
            judged(a, criteria=[{"name": str(n), "score": 1} for n in range(5000)])
        ),
    }
    wrong = {name: lambda a, f=given: json.dumps(judged(a, **f)) for name, given in fields.items()}
    twin = {
        "twin_keys": lambda a: json.dumps(judged(a))[:-1] + ', "score": 10}',
        "score_infinite": lambda a: json.dumps(judged(a)).replace(": 7", ": 1e400"),
        "score_of_no_number": lambda a: json.dumps(judged(a)).replace(": 7", ": NaN"),
    }
    return [
        Kind(name, lambda a, t=text: http(chat(a, t(a))), becomes)
        for becomes, group in (("missing", texts | wrong | twin), ("verdict", right))
        for name, text in group.items()
    ]


KINDS = {
    kind.name: kind
    for group in (
        slow_kinds,
        endless_kinds,
        wire_kinds,
        status_kinds,
        redirect_kinds,
        form_kinds,
        verdict_kinds,
    )
    for kind in group()
}

IN_TEXT = {"something_around_it"}
"""Kinds that hold a verdict where it is asked for in lines of text."""


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read one request and answer it."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        headers = {
            name.lower(): value
            for name, _, value in (line.partition(": ") for line in head.split("\r\n")[1:])
        }
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        asked = Asked(
            body, headers.get("authorization", "").removeprefix("Bearer "), headers["host"]
        )
        made = KINDS[head.split("/")[1]].answer(asked)
        if isinstance(made, bytes):
            writer.write(made)
            await writer.drain()
            return
        async for part in made:
            if part is RESET:
                writer.transport.abort()
                return
            writer.write(part)
            await writer.drain()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # the client has gone
    finally:
        writer.close()


@contextlib.contextmanager
def hostile_server():
    """The server in a process of its own, so that neither it nor its client waits for the other;
    yields its address."""
    words = [sys.executable, __file__]
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def end_with_the_parent() -> None:
    sys.stdin.read()
    os._exit(0)


async def serve() -> None:
    threading.Thread(target=end_with_the_parent, daemon=True).start()
    server = await asyncio.start_server(answer, "127.0.0.1", 0, limit=2**24)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
