"""Requests of OpenAI's protocol, checked: chat completions, and what of the Responses API comes to
the same (responses.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import pydantic

from marl_plugins.builtin.agents.request_fields import (
    MASKED,
    TEXT_ALONE,
    Sent,
    SentRequest,
    one_of,
    refusal_of,
)

Form = TypeVar("Form", bound=SentRequest)


class EndpointRefusal(Exception):
    """A request that cannot be answered as it is; clients do not repeat it.

    Args:
        status: HTTP status, 4xx.
        code: As in OpenAI's errors; empty where they have none.
    """

    def __init__(self, message: str, status: int = 400, code: str = ""):
        self.status = status
        self.code = code
        super().__init__(message)


class Part(Sent):
    """A part of a message's content."""

    type: Annotated[str, one_of("text", "input_text", "output_text", "refusal", why=TEXT_ALONE)]
    text: str = ""
    refusal: str = ""


class CalledFunction(Sent):
    """A call's name and its arguments, which are JSON as a text."""

    name: str
    arguments: str = "{}"


class SentCall(Sent):
    """A call of a tool in an answer."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Sent):
    """A message as a client sends it."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    tool_calls: list[SentCall] | None = None
    tool_call_id: str | None = None
    is_error: bool = False
    """Of a tool's answer, in Anthropic's messages."""

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


class SentFunction(Sent):
    """A function that a program offers."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class SentTool(Sent):
    """A tool that a program offers."""

    type: Literal["function"]
    function: SentFunction


class ChatRequest(SentRequest):
    """A request for a chat completion, to which requests of the other dialects come. What only
    chooses how is sampled is ignored, because that is the run's."""

    model: str
    messages: Annotated[list[Message], pydantic.Field(min_length=1)]
    tools: list[SentTool] | None = None
    tool_choice: Annotated[Any, one_of("auto", "none", why=MASKED)] = None
    parallel_tool_calls: bool | None = None
    stream: bool | None = False
    stream_options: dict[str, Any] | None = None
    max_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    max_completion_tokens: Annotated[int, pydantic.Field(ge=1)] | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None

    @property
    def offered(self) -> list[SentTool]:
        """The tools that may be called."""
        return [] if self.tool_choice == "none" else self.tools or []

    @property
    def stops(self) -> list[str]:
        """The texts that end the answer."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return [text for text in texts if text]


def checked(form: type[Form], body: bytes | Mapping[str, Any]) -> Form:
    """Returns a request in a form of the protocol.

    Raises:
        EndpointRefusal: It is none, or asks for something that cannot be trained on.
    """
    try:
        if isinstance(body, bytes):
            request = form.model_validate_json(body)
        else:
            request = form.model_validate(body)
    except pydantic.ValidationError as error:
        errors = error.errors(include_url=False, include_context=False, include_input=False)
        deepest = max(errors, key=lambda wrong: len(wrong["loc"]))  # of a union's, what was meant
        place = ".".join(str(key) for key in deepest["loc"] if "[" not in str(key))
        wrong = ": ".join(filter(None, [place, deepest["msg"].removeprefix("Value error, ")]))
        raise EndpointRefusal(f"this request is not answered: {wrong}") from None
    if reason := refusal_of(request):
        raise EndpointRefusal(reason)
    return request


def as_chat(request: SentRequest, chat: Mapping[str, Any]) -> ChatRequest:
    """Returns the request for a chat completion that a request of another dialect comes to.

    Raises:
        EndpointRefusal: It asks for something that cannot be trained on.
    """
    asked = checked(ChatRequest, {**chat, "metadata": {"marl": request.rewards}})
    asked.ignored.update(request.ignored)
    return asked


class CallReward(pydantic.BaseModel, extra="forbid", strict=True):
    """A program's reward for an answer, by its id."""

    id: str
    reward: float


def parse_rewards(sent: Any) -> list[CallReward]:
    """Returns rewards, which are sent as an object, a list of such, or as JSON of one of these.

    Raises:
        EndpointRefusal: They are none.
    """
    try:
        value = json.loads(sent) if isinstance(sent, str | bytes) else sent
        return REWARDS.validate_python(value if isinstance(value, list) else [value])
    except (ValueError, RecursionError):
        raise EndpointRefusal(
            'rewards: expected {"id": ID_OF_AN_ANSWER, "reward": NUMBER}, or a list of these'
        ) from None


REWARDS = pydantic.TypeAdapter(list[CallReward])
