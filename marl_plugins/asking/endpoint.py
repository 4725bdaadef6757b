"""An endpoint: the place of a model, and how it is asked."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from marl_plugins.asking.request import Inquiry, JudgeRequest
from marl_plugins.core.redaction import Redaction, encodable, shown_url
from marl_plugins.core.redaction import shown_flag as shown_flag


@dataclass(frozen=True)
class CoachEndpoint:
    """The place of a model, and how it is asked.

    Args:
        prefix: Of the flags that describe it, for messages: `coach` for `--coach.base_url`.
        timeout: Seconds of one request.
        deadline: Seconds of one judgement, queueing, pauses and repeats included.
        retries: Repeats of a request that failed in a way that may pass.
        concurrency: Requests in flight, in the whole run.
        per_minute: Requests begun per minute, in the whole run; None for no limit.
        form: `json` asks for structured output, `text` for lines, `auto` for the first that the
            endpoint has.
        body: Fields added to every request; a null takes one of ours out.
        keys: The recipe's keys in place of flags, by the flag's name, for messages.
    """

    prefix: str
    base_url: str
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    timeout: float = 60.0
    deadline: float = 300.0
    retries: int = 12
    concurrency: int = 32
    per_minute: float | None = None
    max_tokens: int = 1024
    form: Literal["auto", "json", "text"] = "auto"
    body: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)

    def setting(self, name: str) -> str:
        """Returns what a user sets to change one of these values."""
        return self.keys.get(name, f"--{self.prefix}.{name}")

    def __str__(self) -> str:
        return f"{self.prefix} endpoint {self.shown_url}, model {self.model!r}"

    @property
    def shown_url(self) -> str:
        """The address without what may be secret in it."""
        return shown_url(self.base_url)

    @property
    def api_key(self) -> str | None:
        return os.environ.get(self.api_key_env, "").strip() or None

    @property
    def redaction(self) -> Redaction:
        """Takes what authenticates with the endpoint out of what it says."""
        return Redaction([self.api_key or ""], self.base_url, self.body)

    def key(self, request: JudgeRequest) -> str:
        """Derives a question's name from all that its answer depends on: model, form, limits and
        the prompt without its nonce.

        Not by the address, so that a recording can be replayed where the endpoint is another.
        """
        parts = [
            self.model,
            self.form,
            self.max_tokens,
            dict(self.body),
            request.prompt("", self.form),
            request.schema,
            *([request.depends_on] if request.depends_on else []),
        ]
        return hashlib.blake2b(
            json.dumps(parts, sort_keys=True).encode(), digest_size=16
        ).hexdigest()

    def request_body(self, inquiry: Inquiry) -> dict[str, Any]:
        """Returns the JSON body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [
                {name: encodable(text) for name, text in message.items()}
                for message in inquiry.messages
            ],
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        if inquiry.form == "json":
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "judgement", "strict": True, "schema": inquiry.schema},
            }
        return {
            name: value
            for name, value in {**body, **inquiry.body, **self.body}.items()
            if value is not None
        }
