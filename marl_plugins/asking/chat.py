"""The protocol of an OpenAI-compatible endpoint: a conversation goes out, one answer comes back and
is read.

Reading ends in one place (`ChatClient.ask`): whatever an answer is, it can be nothing worse
than `MalformedAnswer`. What a server says goes through `Redaction` here, where it enters, so no
message, record or file holds what authenticates with it.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.exchange import ConnectionFailure, HttpAnswer, HttpConnection
from marl_plugins.asking.limits import SpendingBudget
from marl_plugins.asking.reading import (
    UNREADABLE,
    MalformedAnswer,
    complaint_in,
    read_json,
    seconds_of,
    token_count,
)

NEVER_PASSES = {"insufficient_quota"}
"""Codes of an error that no waiting fixes, whatever its status."""


class ChatRefusal(Exception):
    """The model will not answer this question; asking again costs and does not help."""


class ReportedError(Exception):
    """An answer that reports an error.

    Args:
        code: In the provider's words; may be empty.
        message: What the server says.
        wait: Seconds to wait first, where it names them.
    """

    def __init__(self, status: int, code: str, message: str, wait: float | None = None):
        self.status = status
        self.code = code
        self.message = message
        self.wait = wait
        super().__init__(f"HTTP {status}: {message[:300]}")

    @property
    def final(self) -> bool:
        return self.code in NEVER_PASSES

    @property
    def busy(self) -> bool:
        """Returns whether the endpoint is overloaded, or not ready yet."""
        return self.status in (429, 503) and not self.final


@dataclass(frozen=True)
class ChatAnswer:
    """An answer that was read: its text, why it ended, and whether it says how many tokens it
    took."""

    text: str
    counted: bool
    finish: str = ""

    @property
    def verdict(self) -> str:
        """The text, empty where it was cut off: what is left may be a verdict."""
        return "" if self.finish == "length" else self.text


class ChatClient:
    """Asks an endpoint; the connection is opened with the first question.

    Args:
        budget: What answers take is added to it.
    """

    def __init__(self, endpoint: CoachEndpoint, budget: SpendingBudget):
        self.endpoint = endpoint
        self.budget = budget
        self.redaction = endpoint.redaction
        key = endpoint.api_key or "none"  # local servers take any
        self.connection = HttpConnection(endpoint.base_url, key, endpoint.timeout)
        self.answered: dict[str, Any] | None = None
        """The first question of ours that had an answer, as it was sent."""
        self._other_model = False

    async def close(self) -> None:
        await self.connection.close()

    async def ask(self, body: dict[str, Any]) -> ChatAnswer:
        """Makes one exchange.

        Args:
            body: Of the request, as `CoachEndpoint.request_body` makes it.

        Raises:
            ReportedError: The answer reports an error.
            Refusal: The model will not answer.
            TimeoutError, ConnectionFailure: There is no answer.
            MalformedAnswer: It is anything else.
        """
        try:
            answer = self._read(await self.connection.post("chat/completions", body))
        except (ConnectionFailure, MalformedAnswer) as error:
            raise type(error)(self.redaction.text(str(error), 300)) from None
        except UNREADABLE as error:
            text = self.redaction.text(f"an answer of another form: {error}", 300)
            raise MalformedAnswer(text) from None
        self.answered = self.answered or body
        return answer

    def _read(self, answer: HttpAnswer) -> ChatAnswer:
        if answer.status >= 300:
            raise self._failed(answer)
        values = read_json(answer.data)
        counted = self._count(values)
        complaint = complaint_in(values)
        if complaint and not values.get("choices"):
            raise ReportedError(answer.status, complaint[0], self.redaction.text(complaint[1]))
        choice = values["choices"][0]
        message, finish = choice["message"], choice.get("finish_reason")
        text, refusal = message.get("content"), message.get("refusal")
        if refusal or finish == "content_filter":
            raise ChatRefusal(self.redaction.text(str(refusal or finish), 200))
        if text is None and finish == "length":  # cut off while it was thinking
            text = ""
        if not isinstance(text, str):
            raise MalformedAnswer(f"no text in the answer {self.redaction.text(repr(values), 200)}")
        self._notice_model(values.get("model"))
        return ChatAnswer(self.redaction.redact(text), counted, str(finish))

    def _count(self, values: Any) -> bool:
        """Add the tokens that an answer took; whether it says how many."""
        usage = values.get("usage")
        if not isinstance(usage, dict):
            return False
        tokens = [token_count(usage.get(f"{name}_tokens")) for name in ("prompt", "completion")]
        self.budget.add(*tokens)
        return any(tokens)

    def _failed(self, answer: HttpAnswer) -> ReportedError:
        """The error that a status reports, in the server's words as far as it has any."""
        try:
            complaint = complaint_in(read_json(answer.data))
        except MalformedAnswer:
            complaint = None
        code, message = complaint or ("", answer.data[:2000].decode("utf-8", "replace"))
        message = answer.elsewhere or message
        wait = seconds_of(answer.headers.get("retry-after", ""))
        return ReportedError(answer.status, code, self.redaction.text(message), wait)

    def _notice_model(self, name: Any) -> None:
        """Say once that another model answers than was asked for; `gpt-4o-2024-08-06` is a
        `gpt-4o`."""
        asked = self.endpoint.model.rpartition("/")[2].lower()
        if self._other_model or not isinstance(name, str) or not name:
            return
        answering = name.rpartition("/")[2].lower()
        if answering != asked and not re.match(rf"{re.escape(asked)}[-:@._]", answering):
            self._other_model = True
            shown = self.redaction.text(name, 100)
            logging.getLogger(__name__).warning(
                "%s: the answers are by model '%s'", self.endpoint, shown
            )
