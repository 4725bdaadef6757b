"""One OpenAI-compatible endpoint, asked many times: limits, repeats, a deadline, a budget, and answers that are kept.

Two kinds of failure. What may pass (429, 5xx, a connection, a time-out, an answer that is not in the protocol) is repeated
with growing, random pauses, or after what `Retry-After` asks for; when that does not help within the deadline, this one
judgement is missing (`InfrastructureFailure`), as it is where the endpoint will not judge this very question (too long, a
filter, a refusal). What cannot pass (a refused key, an unknown model, a field that the endpoint does not take) ends the run
at once, with everything up to the last step saved (`RunPaused`).
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from marl_plugins.asking.accounts import Answers, Budget
from marl_plugins.asking.asker import Asker, Call, Form, Message, Request
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused

if TYPE_CHECKING:
    import openai
    from tenacity import RetryCallState

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0
"""Seconds: a repeat waits a random part of the first, then of twice that, ... up to the longest."""
ONE_REQUEST = re.compile(
    r"content.?(?:filter|management|polic)|context.?(?:length|window)|too (?:long|large|many tokens)|maximum.*(?:length|context)",
    re.I,
)
"""What a 400 says that speaks of this question and not of how it is asked: that judgement is missing, and the run goes on."""
NEVER_PASSES = {"insufficient_quota"}
"""Codes of a 429 that no waiting cures."""


class Malformed(Exception):
    """An answer that is not in the protocol."""


class Refused(Exception):
    """The model will not answer this question; asking again costs and does not help."""


@dataclass
class _Shared:
    """A judgement that is being asked for, and how many wait for it: the same question at the same time has one answer."""

    task: asyncio.Task[dict[str, Any]]
    waiting: int = 0


@dataclass(frozen=True)
class Endpoint:
    """Where the model is, and how it is asked.

    Args:
        timeout: Seconds of one request.
        deadline: Seconds of one judgement, queueing, pauses and repeats included.
        retries: Repeats of a request that failed in a way that may pass.
        concurrency: Requests in flight, in the whole run.
        per_minute: Requests begun per minute, in the whole run; None for as many as may be.
        form: `json` asks for structured output, `text` for lines, `auto` for the first that the endpoint has.
        body: Fields added to every request; a null takes one of ours out.
    """

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
        return f"coach endpoint {self.shown_url}, model {self.model!r}"

    @property
    def shown_url(self) -> str:
        """The address without the password that may stand in it."""
        return re.sub(r"//[^/@]*@", "//", self.base_url)


class Client(Asker):
    """Asks an endpoint, within its limits. One for the whole run: its limits are the run's.

    Args:
        answers: Judgements kept from earlier; the same question is asked once.
        replay: Whether to answer from them alone, without a network.
    """

    counted: ClassVar = ("requests", "repeats", "cached", "asked_again")

    def __init__(self, endpoint: Endpoint, budget: Budget, answers: Answers, replay: bool = False):
        super().__init__("text" if endpoint.form == "auto" else endpoint.form, endpoint.deadline)
        self.endpoint = endpoint
        self.budget = budget
        self.answers = answers
        self.replay = replay
        self.in_flight = self.peak = 0
        self.pending: dict[str, _Shared] = {}
        self._client: Any = None

    async def judge(self, request: Request) -> dict[str, Any]:
        """The judgement, from the kept answers or from the endpoint.

        Raises:
            InfrastructureFailure: It cannot be had.
            RunPaused: No judgement can be had from now on.
        """
        key = self.key(request)
        known = self.answers.get(key)
        if known is not None:
            self.counts["cached"] += 1
            return known
        if self.replay:
            raise InfrastructureFailure("coach_replay", "the recorded answers hold none for this")
        shared = self.pending.get(key)
        if shared is None:
            shared = self.pending[key] = _Shared(asyncio.create_task(self._judged(key, request)))
            shared.task.add_done_callback(functools.partial(self._answered, key))
        else:
            self.counts["cached"] += 1
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:  # nobody wants it any more
                shared.task.cancel()

    def _answered(self, key: str, task: asyncio.Task[dict[str, Any]]) -> None:
        self.pending.pop(key, None)
        if not task.cancelled():
            task.exception()  # whoever still waits raises it

    async def _judged(self, key: str, request: Request) -> dict[str, Any]:
        if self._client is None:
            self._open()
        judgement = await super().judge(request)
        self.answers.put(key, judgement)
        return judgement

    async def _asked(self, request: Request, call: Call) -> dict[str, Any]:
        """Only so many judgements are under way at a time that a repeat does not queue behind the whole step."""
        async with self._under_way:
            return await super()._asked(request, call)

    def key(self, request: Request) -> str:
        """Names a question by all that its answer depends on: model, form, limits and the prompt without its nonce.

        Not by the address, so that a recording can be replayed where the endpoint is another.
        """
        e = self.endpoint
        parts = [e.model, e.form, e.max_tokens, dict(e.body), request.prompt("", e.form), request.schema]
        return hashlib.blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()

    async def answer(self, call: Call) -> str:
        """One answer, with repeats."""
        import openai
        from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt

        attempts = AsyncRetrying(
            retry=retry_if_exception(_may_pass),
            stop=stop_after_attempt(self.endpoint.retries + 1),
            wait=_pause,
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    self.counts["repeats"] += attempt.retry_state.attempt_number > 1
                    return await self._request(call)
        except openai.APIStatusError as error:
            raise self._missing_or_fatal(error) from error
        except (openai.APITimeoutError, TimeoutError) as error:
            raise InfrastructureFailure("coach_timeout", f"no answer within {self.endpoint.timeout:g} s") from error
        except openai.APIConnectionError as error:
            raise InfrastructureFailure("coach_unreachable", str(error.__cause__ or error)) from error
        except Refused as error:
            raise InfrastructureFailure("coach_refused", str(error)) from error
        except (openai.APIError, Malformed) as error:
            raise InfrastructureFailure("coach_protocol", str(error)) from error
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _request(self, call: Call) -> str:
        """One request, when the limits allow it; a pause before a repeat holds no place."""
        e = self.endpoint
        async with AsyncExitStack() as limits:
            await limits.enter_async_context(self._slots)
            if self._rate is not None:
                await limits.enter_async_context(self._rate)
            spent = self.budget.spent()
            if spent:
                raise InfrastructureFailure("coach_budget", f"spent: {spent}")
            call.begun = call.begun or time.monotonic()
            self.in_flight += 1
            self.peak = max(self.peak, self.in_flight)
            self.counts["requests"] += 1
            try:
                # The client's time-out is one of silence; ours also ends an answer that trickles in byte by byte.
                async with asyncio.timeout(e.timeout):
                    answer = await self._client.post(
                        "/chat/completions", cast_to=object, body=self.body(call.messages, call.schema)
                    )
            except ValueError as error:  # a body that is not JSON
                raise Malformed(str(error)) from error
            finally:
                self.in_flight -= 1
        return self._text(answer)

    def _open(self) -> None:
        """The connection and the limits, in the event loop that uses them."""
        import openai
        from aiolimiter import AsyncLimiter

        e = self.endpoint
        self._client = openai.AsyncOpenAI(base_url=e.base_url, api_key=api_key(e), timeout=e.timeout, max_retries=0)
        self._slots = asyncio.Semaphore(e.concurrency)
        self._under_way = asyncio.Semaphore(2 * e.concurrency)
        # One request per time slice rather than a minute's worth at once.
        self._rate = None if e.per_minute is None else AsyncLimiter(1, 60.0 / e.per_minute)

    def body(self, messages: list[Message], schema: Mapping[str, Any]) -> dict[str, Any]:
        """The request's JSON body."""
        e = self.endpoint
        body: dict[str, Any] = {"model": e.model, "messages": messages, "temperature": 0, "max_tokens": e.max_tokens}
        if self.form == "json":
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "judgement", "strict": True, "schema": schema},
            }
        return {name: value for name, value in (body | dict(e.body)).items() if value is not None}

    def _text(self, answer: Any) -> str:
        """The text of an answer; empty where it was cut off, for what is cut may be a verdict.

        Raises:
            Malformed: It is not in the protocol.
            Refused: The model will not say.
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

    def _missing_or_fatal(self, error: openai.APIStatusError) -> Exception:
        status, code = error.status_code, str(error.code or "")
        if code not in NEVER_PASSES:
            if status == 429:
                return InfrastructureFailure("coach_busy", f"HTTP 429 after {self.endpoint.retries} repeats")
            if status >= 500 or status in (408, 409):
                return InfrastructureFailure("coach_server", f"HTTP {status}: {error.message[:200]}")
            if status == 413 or (status in (400, 422) and ONE_REQUEST.search(f"{code} {error.message}")):
                return InfrastructureFailure("coach_refused", f"HTTP {status}: {error.message[:200]}")
        return RunPaused(f"{self.endpoint}: {said(error, self.endpoint)}")

    def probe(self, request: Request) -> None:
        """One small request before anything is started; settles the form of the answers.

        Raises:
            ConfigurationError: The endpoint is down, slow, refuses the key or the model, or does not answer in the protocol.
        """
        if self.replay:
            return
        forms: list[Form]
        forms = ["json", "text"] if self.endpoint.form == "auto" else [self.endpoint.form]
        for form in forms:
            self.form = form
            problem, final = self._try_form(request)
            if problem is None:
                return
            if final or form == forms[-1]:
                raise ConfigurationError(f"{self.endpoint}: {problem}")

    def _try_form(self, request: Request) -> tuple[str | None, bool]:
        """What is wrong with an answer in this form, and whether no other form would help."""
        import openai

        e = self.endpoint
        nonce = secrets.token_hex(4)
        messages: list[Message] = [{"role": "user", "content": request.prompt(nonce, self.form)}]
        try:
            with openai.OpenAI(base_url=e.base_url, api_key=api_key(e), timeout=e.timeout, max_retries=1) as client:
                answer = client.post("/chat/completions", cast_to=object, body=self.body(messages, request.schema))
                text = self._text(answer)
        except openai.APITimeoutError:
            return f"no answer within {e.timeout:g} s, twice; is it overloaded? --coach.timeout raises the limit", True
        except openai.APIConnectionError as error:
            return f"cannot be reached ({error.__cause__ or error}); is it running?", True
        except openai.APIStatusError as error:
            return said(error, e), error.status_code not in (400, 422)
        except (openai.APIError, Malformed, Refused, ValueError) as error:
            return f"does not answer as an OpenAI-compatible endpoint does: {error}", True
        if self.budget.limited and not (isinstance(answer, dict) and answer.get("usage")):
            return "does not say how many tokens an answer took, so that a budget cannot be kept", True
        if request.parse(text, nonce, self.form) is None:
            return (
                f"asked for a score of 7 it said {text[:200]!r}, which is not the form it was asked for; use a model that "
                "follows instructions"
            ), False
        return None, True


def said(error: openai.APIStatusError, endpoint: Endpoint) -> str:
    """A refusal in words, with the cure where there is one."""
    if error.status_code in (401, 403):
        return f"refuses the key ({error.status_code}); is ${endpoint.api_key_env} right?"
    key = os.environ.get(endpoint.api_key_env)
    message = error.message.replace(key, "...") if key else error.message  # some servers repeat it
    text = f"HTTP {error.status_code}: {message[:300]}"
    if error.status_code == 404:
        text += "; is --coach.base_url right (it usually ends in /v1), and --coach.model the name that the endpoint uses?"
    if error.code in NEVER_PASSES:
        text += "; the account has run out"
    return text


def api_key(endpoint: Endpoint) -> str:
    return os.environ.get(endpoint.api_key_env) or "none"  # servers of one's own take any


def _may_pass(error: BaseException) -> bool:
    import openai

    if isinstance(error, openai.APIStatusError):
        passing = error.status_code in (408, 409, 429) or error.status_code >= 500
        return passing and str(error.code or "") not in NEVER_PASSES
    return isinstance(error, openai.APIError | Malformed | TimeoutError)


def _pause(state: RetryCallState) -> float:
    """Seconds before the next attempt: what `Retry-After` says, else random and growing (full jitter)."""
    from tenacity import wait_random_exponential

    error = state.outcome.exception() if state.outcome else None
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = seconds_of(headers.get("retry-after", ""))
    if asked is None:
        return float(wait_random_exponential(multiplier=FIRST_PAUSE, max=LONGEST_PAUSE)(state))
    # Everyone who is told the same time comes back spread out a little.
    return asked * (1 + 0.1 * secrets.randbelow(1000) / 1000)


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
