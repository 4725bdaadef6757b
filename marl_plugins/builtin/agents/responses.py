"""The Responses API, as another way to say a chat completion: its items are messages, calls and
what these were answered."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import pydantic

from marl_plugins.builtin.agents.answers import event, usage_of
from marl_plugins.builtin.agents.request_fields import Sent, SentRequest, inside
from marl_plugins.builtin.agents.requests import (
    ChatRequest,
    Part,
    SentFunction,
    as_chat,
    checked,
)
from marl_plugins.builtin.agents.session import EndpointAnswer


class Item(Sent):
    """One item of the input."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: str = ""
    content: str | list[Part] | None = None
    call_id: str = ""
    name: str = ""
    arguments: str = "{}"
    output: str | list[Part] = ""


class OfferedTool(SentFunction):
    """A tool that a program offers; others than functions are services of OpenAI's."""

    type: Literal["function"]


class ResponseRequest(SentRequest):
    """A request for a response."""

    model: str
    input: str | Annotated[list[Item], pydantic.Field(min_length=1)]
    instructions: str | None = None
    tools: Sequence[OfferedTool] = ()
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    text: dict[str, Any] | None = None


def parse_response(body: bytes) -> ChatRequest:
    """Returns the chat completion that a request comes to.

    Raises:
        Refusal: It is none, or asks for something that cannot be trained on.
    """
    request = checked(ResponseRequest, body)
    return as_chat(
        request,
        {
            "model": request.model,
            "messages": list(_messages(request)),
            "tools": [
                {"type": "function", "function": tool.model_dump(exclude={"type"})}
                for tool in request.tools
            ],
            "tool_choice": request.tool_choice,
            "parallel_tool_calls": request.parallel_tool_calls,
            "stream": request.stream,
            "max_tokens": request.max_output_tokens,
            **inside("text", request.text),
        },
    )


def _messages(request: ResponseRequest) -> list[dict[str, Any]]:
    """The messages that a request's items are; a call belongs to the assistant's message before
    it."""
    messages: list[dict[str, Any]] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    items = (
        [Item(role="user", content=request.input)]
        if isinstance(request.input, str)
        else request.input
    )
    for item in items:
        if item.type == "message":
            messages.append({"role": item.role, "content": item.content})
        elif item.type == "function_call":
            if not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            call = {
                "id": item.call_id,
                "function": {"name": item.name, "arguments": item.arguments},
            }
            messages[-1].setdefault("tool_calls", []).append(call)
        elif item.type == "function_call_output":
            messages.append({"role": "tool", "content": item.output, "tool_call_id": item.call_id})
    return messages


def response(request: ChatRequest, answer: EndpointAnswer) -> dict[str, Any]:
    """Returns an answer as a response. Its `id` is the action's path."""
    cut = answer.finish == "length"
    usage = usage_of(answer)
    return {
        "id": answer.action.path,
        "object": "response",
        "created_at": int(time.time()),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "error": None,
        "instructions": None,
        "metadata": {},
        "model": request.model,
        "output": _items(answer),
        "parallel_tool_calls": True,
        "temperature": None,
        "top_p": None,
        "tool_choice": "auto",
        "tools": [
            {"type": "function", "strict": False, **tool.function.model_dump()}
            for tool in request.tools or ()
        ],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "total_tokens": usage["total_tokens"],
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _items(answer: EndpointAnswer) -> list[dict[str, Any]]:
    """The items of an answer: its text, then its calls."""
    path, items = answer.action.path, []
    if answer.message.content or not answer.message.tool_calls:
        text = {
            "type": "output_text",
            "text": answer.message.text,
            "annotations": [],
            "logprobs": [],
        }
        items.append(
            {
                "type": "message",
                "id": f"msg_{path}",
                "role": "assistant",
                "status": "completed",
                "content": [text],
            }
        )
    for call in answer.message.tool_calls or ():
        called = {
            "call_id": call.id,
            "name": call.function.name,
            "arguments": call.function.arguments,
        }
        items.append(
            {"type": "function_call", "id": f"fc_{call.id}", **called, "status": "completed"}
        )
    return items


def events(request: ChatRequest, answer: EndpointAnswer) -> Iterator[bytes]:
    """Yields the events of a stream that an answer is."""
    whole, numbers = response(request, answer), itertools.count()

    def numbered(kind: str, **more: Any) -> bytes:
        return event({"type": kind, "sequence_number": next(numbers), **more}, kind)

    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    yield numbered("response.created", response=begun)
    yield numbered("response.in_progress", response=begun)
    for index, item in enumerate(whole["output"]):
        yield from _item_events(numbered, index, item)
    yield numbered(f"response.{whole['status']}", response=whole)


def _item_events(numbered: Any, index: int, item: Mapping[str, Any]) -> Iterator[bytes]:
    at = {"item_id": item["id"], "output_index": index}
    empty: dict[str, Any] = {"content": []} if item["type"] == "message" else {"arguments": ""}
    begun = {**item, "status": "in_progress", **empty}
    yield numbered("response.output_item.added", output_index=index, item=begun)
    if item["type"] == "message":
        part, inside = item["content"][0], {**at, "content_index": 0}
        yield numbered("response.content_part.added", **inside, part={**part, "text": ""})
        yield numbered("response.output_text.delta", **inside, delta=part["text"], logprobs=[])
        yield numbered("response.output_text.done", **inside, text=part["text"], logprobs=[])
        yield numbered("response.content_part.done", **inside, part=part)
    else:
        yield numbered("response.function_call_arguments.delta", **at, delta=item["arguments"])
        yield numbered(
            "response.function_call_arguments.done",
            **at,
            name=item["name"],
            arguments=item["arguments"],
        )
    yield numbered("response.output_item.done", output_index=index, item=item)
