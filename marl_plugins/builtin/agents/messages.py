"""Anthropic's Messages API, as another way to say a chat completion: its blocks are texts,
thoughts, calls and what these were answered.

A model's thought is a block of its own, with the marks around it, so that the blocks of an answer
put together are the text that was sampled, and a client that sends them back goes on from its ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

from marl_plugins.builtin.agents.answers import event, usage_of
from marl_plugins.builtin.agents.request_fields import (
    PREFILL,
    TEXT_ALONE,
    Sent,
    SentRequest,
    inside,
    one_of,
)
from marl_plugins.builtin.agents.requests import ChatRequest, EndpointRefusal, as_chat, checked
from marl_plugins.builtin.agents.session import EndpointAnswer, failure_of

THOUGHT_END = "</think>"
KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    503: "overloaded_error",
}
"""Anthropic's names of errors, by status."""


class Block(Sent):
    """A part of a message's content."""

    type: Annotated[str, one_of("text", "thinking", "tool_use", "tool_result", why=TEXT_ALONE)]
    text: str = ""
    thinking: str = ""
    signature: str = ""
    id: str = ""
    name: str = ""
    input: Any = None
    tool_use_id: str = ""
    content: str | list[Block] = ""
    is_error: bool = False


class SentMessage(Sent):
    """A message as a client sends it."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class OfferedTool(Sent):
    """A tool of the program's; one with another type runs at Anthropic's, or has a schema that only
    their models know."""

    type: Literal["custom"] = "custom"
    name: str
    description: str | None = None
    input_schema: dict[str, Any]


class ToolChoice(Sent):
    """Whether tools may be called."""

    type: str = "auto"
    disable_parallel_tool_use: bool = False


class MessagesRequest(SentRequest):
    """A request for a message, or for the number of its tokens."""

    model: str
    messages: Annotated[list[SentMessage], pydantic.Field(min_length=1)]
    max_tokens: int | None = None
    system: str | list[Block] = ""
    tools: Sequence[OfferedTool] = ()
    tool_choice: ToolChoice = ToolChoice()
    stop_sequences: Sequence[str] = ()
    stream: bool = False
    output_config: dict[str, Any] | None = None


def parse_messages(body: bytes) -> ChatRequest:
    """Returns the chat completion that a request comes to.

    Raises:
        EndpointRefusal: It is none, or asks for something that cannot be trained on.
    """
    request = checked(MessagesRequest, body)
    if request.messages[-1].role == "assistant":
        raise EndpointRefusal(f"the last message is the assistant's: {PREFILL}")
    return as_chat(
        request,
        {
            "model": request.model,
            "messages": list(_messages(request)),
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": tool.name,
                        "description": tool.description,
                        "parameters": tool.input_schema,
                    },
                }
                for tool in request.tools
            ],
            "tool_choice": request.tool_choice.type,
            "parallel_tool_calls": not request.tool_choice.disable_parallel_tool_use,
            "stream": request.stream,
            "max_tokens": request.max_tokens,
            "stop": request.stop_sequences,
            **inside("output_config", request.output_config),
        },
    )


def _messages(request: MessagesRequest) -> Iterator[dict[str, Any]]:
    """The messages that a request's blocks are: what tools have answered comes before what the user
    says beside it."""
    if request.system:
        yield {"role": "system", "content": _text(request.system)}
    for message in request.messages:
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [Block(type="text", text=blocks)]
        calls = []
        for block in blocks:
            if block.type == "tool_result":
                answer = {"role": "tool", "tool_call_id": block.tool_use_id}
                yield {**answer, "content": _text(block.content), "is_error": block.is_error}
            elif block.type == "tool_use":
                function = {"name": block.name, "arguments": json.dumps(block.input or {})}
                calls.append({"id": block.id, "function": function})
        text = _text(blocks)
        if text or message.role == "assistant":
            yield {"role": message.role, "content": text, "tool_calls": calls or None}


def _text(content: str | list[Block]) -> str:
    """The text of some blocks, thoughts included."""
    if isinstance(content, str):
        return content
    return "".join(block.thinking + block.text for block in content)


def blocks_of(answer: EndpointAnswer) -> list[dict[str, Any]]:
    """Returns the blocks of an answer: what it has thought, its text, its calls."""
    before, end, text = answer.message.text.partition(THOUGHT_END)
    blocks: list[dict[str, Any]] = []
    if end:
        blank = text[: len(text) - len(text.lstrip())]
        thought = {"thinking": before + end + blank, "signature": answer.action.path}
        blocks.append({"type": "thinking", **thought})
        text = text.removeprefix(blank)
    else:
        text = before
    calls = [
        {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": json.loads(call.function.arguments),
        }
        for call in answer.message.tool_calls or ()
    ]
    if text or not (blocks or calls):
        blocks.append({"type": "text", "text": text})
    return blocks + calls


def message(request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any]:
    """Returns an answer as a message. Its `id` is the action's path."""
    usage = usage_of(answer)
    reasons = {"length": "max_tokens", "tool_calls": "tool_use"}
    ended = "stop_sequence" if answer.stopped_by else "end_turn"
    return {
        "id": answer.action.path,
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": blocks_of(answer),
        "stop_reason": reasons.get(answer.finish, ended),
        "stop_sequence": answer.stopped_by,
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


def message_events(request: ChatRequest, answer: EndpointAnswer) -> Iterator[bytes]:
    """Yields the events of a stream that an answer is."""
    whole = message(request, answer)
    delta = {name: whole.pop(name) for name in ("stop_reason", "stop_sequence")}
    begun = {**whole, **dict.fromkeys(delta), "content": []}
    yield typed("message_start", message=begun)
    for index, block in enumerate(whole["content"]):
        yield from _block_events(index, block)
    yield typed("message_delta", delta=delta, usage=whole["usage"])
    yield typed("message_stop")


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    empty: dict[str, Any]
    if block["type"] == "tool_use":
        kind, name, empty = "input_json_delta", "partial_json", {"input": {}}
        piece = json.dumps(block["input"])
    else:
        name = block["type"]
        kind, empty = f"{name}_delta", {name: ""}
        piece = block[name]
    yield typed("content_block_start", index=index, content_block={**block, **empty})
    yield typed("content_block_delta", index=index, delta={"type": kind, name: piece})
    yield typed("content_block_stop", index=index)


def typed(kind: str, **more: Any) -> bytes:
    """Returns one event of a stream."""
    return event({"type": kind, **more}, kind)


def message_error(error: BaseException) -> dict[str, Any]:
    """Returns an error as clients of this protocol know it."""
    status, text, _ = failure_of(error)
    kind = KINDS.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": text}}
