"""Requests of OpenAI's protocol, checked: chat completions, and what of the Responses API comes to
the same (responses.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic

Form = TypeVar("Form", bound=pydantic.BaseModel)
Text = Literal["text", "input_text", "output_text", "refusal"]
MASKED = "a masked distribution is sampled then, which is not the one that is trained"


SAMPLING = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
)
"""Keys that are ignored."""


class EndpointRefusal(Exception):
    """A request that cannot be answered as it is; clients do not repeat it.

    Args:
        status: HTTP status, 4xx.
        code: As in OpenAI's errors; empty where they have none.
    """

    def __init__(self, status: int, message: str, code: str = ""):
        self.status = status
        self.code = code
        super().__init__(message)


class Part(pydantic.BaseModel):
    """A part of a message's content."""

    type: Text
    text: str = ""
    refusal: str = ""


class CalledFunction(pydantic.BaseModel):
    """A call's name and its arguments, which are JSON as a text."""

    name: str
    arguments: str = "{}"


class SentCall(pydantic.BaseModel):
    """A call of a tool in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(pydantic.BaseModel):
    """A message as a client sends it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None

    @property
    def text(self) -> str:
        """The content as one text, whatever form it has."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text or part.refusal for part in self.content or ())

    @property
    def shown_role(self) -> str:
        """The role as chat templates know it."""
        return "system" if self.role == "developer" else self.role


class SentFunction(pydantic.BaseModel):
    """A function that a program offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class SentTool(pydantic.BaseModel):
    """A tool that a program offers."""

    type: Literal["function"]
    function: SentFunction


class ChatRequest(pydantic.BaseModel):
    """A request for a chat completion. What only chooses how is sampled is ignored, because that is
    the run's."""

    model: str
    messages: Annotated[list[Message], pydantic.Field(min_length=1)]
    tools: list[SentTool] | None = None
    tool_choice: Any = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    n: int | None = None
    response_format: dict[str, Any] | None = None
    logit_bias: dict[str, Any] | None = None
    functions: list[Any] | None = None
    audio: Any = None
    modalities: list[str] | None = None
    temperature: Any = None
    top_p: Any = None
    top_k: Any = None
    min_p: Any = None
    seed: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None

    @property
    def ignored(self) -> list[str]:
        """Returns what it says of sampling, which is the run's."""
        return [name for name in SAMPLING if getattr(self, name) is not None]

    @property
    def offered(self) -> list[SentTool]:
        """The tools that may be called."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def limit(self) -> int | None:
        """The most tokens that are wanted."""
        limits = [
            limit for limit in (self.max_tokens, self.max_completion_tokens) if limit is not None
        ]
        return min(limits, default=None)

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        return (
            [self.stop]
            if isinstance(self.stop, str)
            else [text for text in self.stop or () if text]
        )


def checked(form: type[Form], body: bytes | Mapping[str, Any]) -> Form:
    """Returns a request in a form of the protocol.

    Raises:
        EndpointRefusal: It is none.
    """
    try:
        if isinstance(body, bytes):
            return form.model_validate_json(body)
        return form.model_validate(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise EndpointRefusal(
            400, f"not a request that is understood: {place}{': ' if place else ''}{first['msg']}"
        ) from None


def parse_chat(body: bytes | Mapping[str, Any]) -> ChatRequest:
    """Returns a request, checked.

    Raises:
        EndpointRefusal: It is none, or asks for something that cannot be trained on.
    """
    request = checked(ChatRequest, body)
    _refuse(request)
    return request


def _refuse(request: ChatRequest) -> None:
    """Raises `EndpointRefusal` where a request asks for something that cannot be trained on."""
    choice, format = request.tool_choice, (request.response_format or {}).get("type", "text")
    if request.n not in (None, 1):
        raise EndpointRefusal(
            400,
            f"n: {request.n} answers were asked for, and a request has one; ask again for another",
        )
    if choice not in (None, "auto", "none"):
        raise EndpointRefusal(400, f"tool_choice: only auto and none are answered; else {MASKED}")
    if format != "text":
        raise EndpointRefusal(
            400,
            f"response_format: {format} is not answered; {MASKED}. Say in the prompt which form is "
            "wanted",
        )
    if request.logit_bias:
        raise EndpointRefusal(400, f"logit_bias is not answered; {MASKED}")
    if request.functions:
        raise EndpointRefusal(400, "functions are not read; send tools")
    if request.audio or (request.modalities or ["text"]) != ["text"]:
        raise EndpointRefusal(400, "modalities: only text is sampled")
    try:
        json.dumps([m.text for m in request.messages], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise EndpointRefusal(
            400, "a message holds half a surrogate pair, which is no text"
        ) from None
