"""Answers as chat completions, whole and as streams."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from marl_plugins.builtin.agents.requests import ChatRequest
from marl_plugins.builtin.agents.session import EndpointAnswer


def usage_of(answer: EndpointAnswer) -> dict[str, int]:
    """Returns the tokens of an action: those that were shown, and those that were sampled."""
    shown, sampled = len(answer.action.context_ids), len(answer.action.generation.ids)
    return {"prompt_tokens": shown, "completion_tokens": sampled, "total_tokens": shown + sampled}


def logprobs_of(request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any] | None:
    """Returns the log-probs of all sampled tokens, as they are recorded, where a request wants
    them: of the distribution that was sampled, stop strings and the end of the turn included."""
    if not request.logprobs:
        return None
    generation = answer.action.generation
    content: list[dict[str, Any]] = [
        {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": []}
        for token, logprob in zip(answer.tokens, generation.logprobs, strict=True)
    ]
    return {"content": content, "refusal": None}


def _about(kind: str, request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any]:
    return {
        "id": answer.action.path,
        "object": kind,
        "created": int(time.time()),
        "model": request.model,
    }


def completion(request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any]:
    """Returns an answer as a chat completion. Its `id` is the action's path; what the role's own
    tools answered last stands in the message as `tool_output`, which is no part of the protocol."""
    message = answer.message.model_dump(exclude_none=True, exclude={"tool_call_id", "is_error"})
    message |= {"content": answer.message.content, "refusal": None}
    if answer.action.tool_results:
        message["tool_output"] = str.__str__(answer.action.tool_output)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": answer.finish,
        "logprobs": logprobs_of(request, answer),
    }
    about = _about("chat.completion", request, answer)
    return {**about, "choices": [choice], "usage": usage_of(answer)}


def completion_chunks(request: ChatRequest, answer: EndpointAnswer) -> Iterator[bytes]:
    """Yields the events of a stream that an answer is: its role, its text, its calls, the end, and
    the usage if asked."""
    about = _about("chat.completion.chunk", request, answer)

    def chunk(
        delta: Mapping[str, Any],
        finish: str | None = None,
        logprobs: Mapping[str, Any] | None = None,
    ) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**about, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""}, logprobs=logprobs_of(request, answer))
    if answer.message.text:
        yield chunk({"content": answer.message.text})
    for number, call in enumerate(answer.message.tool_calls or ()):
        yield chunk({"tool_calls": [{"index": number, **call.model_dump()}]})
    yield chunk({}, answer.finish)
    if (request.stream_options or {}).get("include_usage"):
        yield event({**about, "choices": [], "usage": usage_of(answer)})
    yield b"data: [DONE]\n\n"


def event(data: Mapping[str, Any], kind: str = "") -> bytes:
    """Returns one server-sent event."""
    first = f"event: {kind}\n" if kind else ""
    return f"{first}data: {json.dumps(data)}\n\n".encode()
