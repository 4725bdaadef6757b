"""A model at an endpoint that speaks: it continues conversations, and judges nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.question import in_time
from marl_plugins.asking.request import Form, Inquiry, Judgement, Message, MessageLayer


@dataclass(frozen=True)
class Turn:
    """What a model is to say next.

    Args:
        body: Fields of the request: how it is sampled, and how long it may be.
    """

    messages: Sequence[Message]
    body: Mapping[str, Any]

    def key(self, endpoint: CoachEndpoint) -> str:
        """Derives the turn's name from all that its answer depends on, and from all that was asked
        for: samples that only a seed tells apart stay apart where an endpoint is told none."""
        inquiry = Inquiry(list(self.messages), "text", {}, self.body)
        asked = json.dumps([endpoint.request_body(inquiry), dict(self.body)], sort_keys=True)
        return hashlib.blake2b(asked.encode(), digest_size=16).hexdigest()


class Speaker:
    """The layer that has a turn said.

    Args:
        inner: Brings the answers of the endpoint.
        under_way: Entered for each turn.
    """

    form: Form = "text"

    def __init__(
        self,
        inner: MessageLayer,
        endpoint: CoachEndpoint,
        under_way: AbstractAsyncContextManager[Any],
    ):
        self.inner = inner
        self.endpoint = endpoint
        self.redaction = endpoint.redaction
        self.under_way = under_way

    async def judge(self, turn: Turn) -> Judgement:
        """Returns the answer as `text`, and why it ended as `finish`."""
        inquiry = Inquiry(list(turn.messages), "text", {}, turn.body, whole=True)
        async with in_time(self.endpoint.deadline, self.endpoint.prefix), self.under_way:
            text = await self.inner.send(inquiry)
        return {"text": self.redaction.text(text), "finish": inquiry.finish}
