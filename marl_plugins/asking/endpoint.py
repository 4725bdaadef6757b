"""One request to an OpenAI-compatible endpoint, and what each way of failing means.

Two kinds of failure. What may pass (429, 5xx, a connection, a time-out, an answer that is not in the protocol) is a
`MayPass`, which is repeated; where the endpoint will not judge this very question (too long, a filter, a refusal) that one
judgement is missing (`InfrastructureFailure`). What cannot pass (a refused key, an unknown model, a field that the endpoint
does not take) ends the run at once, with everything up to the last step saved (`RunPaused`).
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Literal

from marl_plugins.asking.limits import SpendingBudget
from marl_plugins.asking.question import random_nonce
from marl_plugins.asking.request import Form, Inquiry, MayPass, Request, Tally
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused

if TYPE_CHECKING:
    import openai

ONE_REQUEST = re.compile(
    r"content.?(?:filter|management|polic)|context.?(?:length|window)|too (?:long|large|many tokens)|maximum.*(?:length|context)",
    re.I,
)
"""A 400 that speaks of this question and not of how it is asked: only that judgement is missing."""
NEVER_PASSES = {"insufficient_quota"}
"""Codes of a 429 that no waiting fixes."""


class Malformed(Exception):
    """An answer that is not in the protocol."""


class Refused(Exception):
    """The model will not answer this question; asking again costs and does not help."""


@dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how it is asked.

    Args:
        prefix: Of the flags that describe it, for messages: `coach` for `--coach.base_url`.
        timeout: Seconds of one request.
        deadline: Seconds of one judgement, queueing, pauses and repeats included.
        retries: Repeats of a request that failed in a way that may pass.
        concurrency: Requests in flight, in the whole run.
        per_minute: Requests begun per minute, in the whole run; None for no limit.
        form: `json` asks for structured output, `text` for lines, `auto` for the first that the endpoint has.
        body: Fields added to every request; a null takes one of ours out.
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

    def __str__(self) -> str:
        return f"{self.prefix} endpoint {self.shown_url}, model {self.model!r}"

    @property
    def shown_url(self) -> str:
        """The address without the password that may stand in it."""
        return re.sub(r"//[^/@]*@", "//", self.base_url)

    @property
    def api_key(self) -> str:
        return os.environ.get(self.api_key_env) or "none"  # local servers take any

    def key(self, request: Request) -> str:
        """Names a question by all that its answer depends on: model, form, limits and the prompt without its nonce.

        Not by the address, so that a recording can be replayed where the endpoint is another.
        """
        parts = [
            self.model,
            self.form,
            self.max_tokens,
            dict(self.body),
            request.prompt("", self.form),
            request.schema,
        ]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    def request_body(self, inquiry: Inquiry) -> dict[str, Any]:
        """The JSON body of a request."""
        body: dict[str, Any] = {
            "model": self.model,
            "messages": inquiry.messages,
            "temperature": 0,
            "max_tokens": self.max_tokens,
        }
        if inquiry.form == "json":
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "judgement", "strict": True, "schema": inquiry.schema},
            }
        return {name: value for name, value in (body | dict(self.body)).items() if value is not None}


class EndpointTransport:
    """Sends requests to an endpoint; the connection is opened with the first one.

    Args:
        budget: What answers take is added to it.
    """

    def __init__(self, endpoint: Endpoint, budget: SpendingBudget, tally: Tally):
        self.endpoint = endpoint
        self.budget = budget
        self.tally = tally
        self._client: openai.AsyncOpenAI | None = None

    def _connect(self, max_retries: int) -> openai.AsyncOpenAI:
        import openai

        e = self.endpoint
        return openai.AsyncOpenAI(base_url=e.base_url, api_key=e.api_key, timeout=e.timeout, max_retries=max_retries)

    async def close(self) -> None:
        if self._client is not None:
            await self._client.close()
        self._client = None

    async def send(self, inquiry: Inquiry) -> str:
        """One answer; empty where it was cut off.

        Raises:
            MayPass: It is unavailable, and repeating the request may help.
            InfrastructureFailure: The endpoint will not answer this one.
            RunPaused: It will not answer any.
        """
        import openai

        if self._client is None:
            self._client = self._connect(max_retries=0)
        e = self.endpoint
        inquiry.begun = inquiry.begun or time.monotonic()
        self.tally.counts["requests"] += 1
        try:
            # The client's time-out is one of silence; ours also ends an answer that trickles in byte by byte.
            async with asyncio.timeout(e.timeout):
                answer = await self._client.post("/chat/completions", cast_to=object, body=e.request_body(inquiry))
            return self._text(answer)
        except openai.APIStatusError as error:
            raise self._failure(error) from error
        except (openai.APITimeoutError, TimeoutError) as error:
            raise MayPass("coach_timeout", f"no answer within {e.timeout:g} s (--{e.prefix}.timeout)") from error
        except openai.APIConnectionError as error:
            raise MayPass("coach_unreachable", str(error.__cause__ or error)) from error
        except Refused as error:
            raise InfrastructureFailure("coach_refused", str(error)) from error
        except (openai.APIError, Malformed, ValueError) as error:  # ValueError: a body that is not JSON
            raise MayPass("coach_protocol", str(error)) from error

    def _text(self, answer: Any) -> str:
        """The text of an answer; empty where it was cut off, because what is cut off may be a verdict.

        Raises:
            Malformed: It is not in the protocol.
            Refused: The model will not answer.
        """
        try:
            usage = answer.get("usage") or {}
            used = (int(usage.get(f"{name}_tokens") or 0) for name in ("prompt", "completion"))
            self.budget.add(*(max(0, tokens) for tokens in used))
            choice = answer["choices"][0]
            text, refusal, finish = (
                choice["message"].get("content"),
                choice["message"].get("refusal"),
                choice.get("finish_reason"),
            )
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise Malformed(f"no text in the answer {answer!r:.200}") from error
        if refusal or finish == "content_filter":
            raise Refused(str(refusal or finish)[:200])
        if not isinstance(text, str):
            raise Malformed(f"no text in the answer {answer!r:.200}")
        return "" if finish == "length" else text

    def _failure(self, error: openai.APIStatusError) -> Exception:
        """What a status means: may pass, this question alone, or the end of the run."""
        status, code = error.status_code, str(error.code or "")
        if code not in NEVER_PASSES:
            wait = seconds_of(error.response.headers.get("retry-after", ""))
            if status == 429:
                return MayPass("coach_busy", "HTTP 429", wait)
            if status >= 500 or status in (408, 409):
                return MayPass("coach_server", f"HTTP {status}: {error.message[:200]}", wait)
            if status == 413 or (status in (400, 422) and ONE_REQUEST.search(f"{code} {error.message}")):
                return InfrastructureFailure("coach_refused", f"HTTP {status}: {error.message[:200]}")
        return RunPaused(f"{self.endpoint}: {explain_status(error, self.endpoint)}")

    async def probe(self, request: Request) -> Form:
        """One small request, in the first form that the endpoint answers in.

        Raises:
            ConfigurationError: The endpoint is down, slow, refuses the key or the model, or does not answer in the protocol.
        """
        forms: list[Form] = ["json", "text"] if self.endpoint.form == "auto" else [self.endpoint.form]
        for form in forms:
            problem, final = await self._try_form(request, form)
            if problem is None:
                return form
            if final or form == forms[-1]:
                break
        raise ConfigurationError(f"{self.endpoint}: {problem}")

    async def _try_form(self, request: Request, form: Form) -> tuple[str | None, bool]:
        """What is wrong with an answer in this form, and whether no other form would help."""
        import openai

        e, nonce = self.endpoint, random_nonce(request)
        inquiry = Inquiry([{"role": "user", "content": request.prompt(nonce, form)}], form, request.schema)
        try:
            async with self._connect(max_retries=1) as client:
                answer = await client.post("/chat/completions", cast_to=object, body=e.request_body(inquiry))
            text = self._text(answer)
        except openai.APITimeoutError:
            hint = f"is it overloaded? --{e.prefix}.timeout raises the limit"
            return f"no answer within {e.timeout:g} s, twice; {hint}", True
        except openai.APIConnectionError as error:
            return f"cannot be reached ({error.__cause__ or error}); is it running?", True
        except openai.APIStatusError as error:
            return explain_status(error, e), error.status_code not in (400, 422)
        except (openai.APIError, Malformed, Refused, ValueError) as error:
            return f"does not answer as an OpenAI-compatible endpoint does: {error}", True
        if self.budget.limited and not (isinstance(answer, dict) and answer.get("usage")):
            return "does not report how many tokens an answer took, which a budget requires", True
        if request.parse(text, nonce, form) is None:
            return (
                f"answered a trial question with {text[:200]!r}, which is not the form it was asked for; use a model that "
                "follows instructions"
            ), False
        return None, True


def explain_status(error: openai.APIStatusError, endpoint: Endpoint) -> str:
    """An HTTP status for people, with the fix where there is one."""
    if error.status_code in (401, 403):
        return f"refuses the key ({error.status_code}); is ${endpoint.api_key_env} right?"
    key = os.environ.get(endpoint.api_key_env)
    message = error.message.replace(key, "...") if key else error.message  # some servers repeat it
    text = f"HTTP {error.status_code}: {message[:300]}"
    if error.status_code == 404:
        text += (
            f"; is --{endpoint.prefix}.base_url right (it usually ends in /v1), and --{endpoint.prefix}.model the name that the "
            "endpoint uses?"
        )
    if error.code in NEVER_PASSES:
        text += "; the account has run out of credit"
    return text


def seconds_of(retry_after: str) -> float | None:
    """What a `Retry-After` header asks for: seconds, or until a date; None where it is neither."""
    try:
        return max(0.0, float(retry_after))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except ValueError:
        return None
