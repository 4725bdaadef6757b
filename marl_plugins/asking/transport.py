"""Each way in which an endpoint fails has a meaning for the run, which is decided here.

Two kinds of failure. What may pass (429, 5xx, a connection, a time-out, an answer that is not in
the protocol) is a `TransientFailure`, which is repeated; where the endpoint will not judge this
very question (too long, a filter, a refusal; a 400 or 422, if it still answers the first that it
has answered) that one judgement is missing (`InfrastructureFailure`). What cannot pass (a refused
key, an unknown model, no credit, in whichever words, a redirect) ends the run at once, with
everything up to the last step saved (`RunPaused`).
"""

from __future__ import annotations

import asyncio
import itertools
import time

from marl_plugins.asking.chat import ChatAnswer, ChatClient, ChatRefusal, ReportedError
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.exchange import ConnectionFailure
from marl_plugins.asking.limits import SpendingBudget
from marl_plugins.asking.question import random_nonce
from marl_plugins.asking.reading import MalformedAnswer
from marl_plugins.asking.repeats import pause_after
from marl_plugins.asking.request import Form, Inquiry, JudgeRequest, RequestTally, TransientFailure
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.problems import Problem, at

FAILURES = (
    ReportedError,
    ChatRefusal,
    TimeoutError,
    ConnectionFailure,
    MalformedAnswer,
)
"""What may come of an exchange in place of an answer."""


class EndpointTransport:
    """Sends requests to an endpoint; the connection is opened with the first one.

    Args:
        budget: What answers take is added to it.
    """

    def __init__(self, endpoint: CoachEndpoint, budget: SpendingBudget, tally: RequestTally):
        self.endpoint = endpoint
        self.budget = budget
        self.tally = tally
        self.client = ChatClient(endpoint, budget)

    async def close(self) -> None:
        await self.client.close()

    async def send(self, inquiry: Inquiry) -> str:
        """Returns one answer; empty where it was cut off, unless the inquiry is for its words.

        Raises:
            TransientFailure: It is unavailable, and repeating the request may help.
            InfrastructureFailure: The endpoint will not answer this one.
            RunPaused: It will not answer any.
        """
        e = self.endpoint
        inquiry.begun = inquiry.begun or time.monotonic()
        self.tally.counts["requests"] += 1
        try:
            answer = await self._ask(inquiry)
        except ReportedError as error:
            raise self._meaning(error) from error
        except TimeoutError as error:
            raise TransientFailure(
                "coach_timeout", f"no answer within {e.timeout:g} s (--{e.prefix}.timeout)"
            ) from error
        except ConnectionFailure as error:
            raise TransientFailure("coach_unreachable", str(error)) from error
        except ChatRefusal as error:
            raise InfrastructureFailure("coach_refused", str(error)) from error
        except MalformedAnswer as error:
            raise TransientFailure("coach_protocol", str(error)) from error
        inquiry.finish = answer.finish
        return answer.text if inquiry.whole else answer.verdict

    async def _ask(self, inquiry: Inquiry) -> ChatAnswer:
        """Makes one exchange. Where the question is refused, the first that had an answer is asked
        again: 400 is also what some say of an account without credit, or of a key that has expired.

        Raises:
            InfrastructureFailure: This question alone is refused.
        """
        try:
            return await self.client.ask(self.endpoint.request_body(inquiry))
        except ReportedError as error:
            if error.final or error.status not in (400, 422) or not self.client.answered:
                raise
            await self.client.ask(self.client.answered)
            raise InfrastructureFailure("coach_refused", str(error)) from error

    def _meaning(self, error: ReportedError) -> Exception:
        """Returns what a reported error means: it may pass, concerns this question alone, or ends
        the run."""
        if not error.final:
            if error.busy:
                return TransientFailure("coach_busy", str(error), error.wait)
            if error.status >= 500 or error.status in (408, 409, 425):
                return TransientFailure("coach_server", str(error), error.wait)
            if error.status < 300:
                return TransientFailure(
                    "coach_protocol", f"an error in place of an answer: {error}"
                )
            if error.status == 413:
                return InfrastructureFailure("coach_refused", str(error))
        return RunPaused(str(self._problem(error)))

    def _problem(self, error: Exception) -> Problem:
        """Returns what the failure of an exchange is to the user, with the fix where there is
        one."""
        e, where, fixes = self.endpoint, at(name=str(self.endpoint)), []
        if isinstance(error, TimeoutError):
            got = f"no answer within {e.timeout:g} s"
            fix = f"is it overloaded? --{e.prefix}.timeout raises the limit"
            return Problem("endpoint.slow", where, got, fix=fix)
        if isinstance(error, ConnectionFailure):
            got = f"cannot be reached ({error})"
            return Problem("endpoint.unreachable", where, got, fix="is it running?")
        if not isinstance(error, ReportedError):
            got = f"does not answer as an OpenAI-compatible endpoint does: {error}"
            return Problem("endpoint.protocol", where, got)
        if error.status in (401, 403):
            got, fix = f"refuses the key ({error.status})", f"is ${e.api_key_env} right?"
            return Problem("endpoint.key", where, got, fix=fix)
        if error.status == 404:
            fixes += [
                f"is {e.setting('base_url')} right (it usually ends in /v1), and "
                f"{e.setting('model')} the name that the endpoint uses?"
            ]
        if error.busy:
            fixes += [f"it asks to wait {error.wait:.0f} s" if error.wait else "it is busy"]
        if error.final:
            fixes += ["the account has run out of credit"]
        return Problem("endpoint.refused", where, str(error), fix="; ".join(fixes))

    async def probe(self, request: JudgeRequest) -> Form:
        """Makes one small request, in the first form that the endpoint answers in, within twice the
        time of a request.

        Raises:
            ConfigurationError: The endpoint is down, slow, refuses the key or the model, or does
                not answer in the protocol.
        """
        forms: list[Form] = (
            ["json", "text"] if self.endpoint.form == "auto" else [self.endpoint.form]
        )
        until = time.monotonic() + 2 * self.endpoint.timeout
        try:
            for form in forms:
                problem, final = await self._try_form(request, form, until)
                if problem is None:
                    return form
                if final or form == forms[-1]:
                    break
        finally:
            await self.close()  # later requests may come from another event loop
        assert problem is not None, "the last form returns or leaves a problem"
        raise ConfigurationError(problem)

    async def _try_form(
        self, request: JudgeRequest, form: Form, until: float
    ) -> tuple[Problem | None, bool]:
        """Returns what is wrong with an answer in this form, and whether no other form would
        help."""
        nonce, where = random_nonce(request), at(name=str(self.endpoint))
        inquiry = Inquiry(
            [{"role": "user", "content": request.prompt(nonce, form)}], form, request.schema
        )
        try:
            answer = await self._ask_when_ready(inquiry, until)
        except FAILURES as error:
            other_form = isinstance(error, ReportedError) and error.status in (400, 422)
            return self._problem(error), not other_form
        if self.budget.limited and not answer.counted:
            got = "does not report how many tokens an answer took, which a budget requires"
            return Problem("endpoint.no_usage", where, got), True
        if request.read(answer.verdict, nonce, form) is None:
            shown = self.client.redaction.text(answer.text[:1000], 200)
            got = (
                f"answered a trial question with {shown!r}, which is not the form it was asked for"
            )
            return Problem(
                "endpoint.form", where, got, fix="use a model that follows instructions"
            ), False
        return None, True

    async def _ask_when_ready(self, inquiry: Inquiry, until: float) -> ChatAnswer:
        """An answer, waited for as a run would while the endpoint is busy, and asked for again
        after one time-out."""
        timed_out, busy = False, None
        for attempt in itertools.count(1):
            try:
                async with asyncio.timeout(until - time.monotonic()):
                    return await self.client.ask(self.endpoint.request_body(inquiry))
            except TimeoutError as error:
                if timed_out or time.monotonic() >= until:
                    raise busy or error from None  # an endpoint that said it is busy did answer
                timed_out = True
            except ReportedError as error:
                wait, busy = pause_after(attempt, error.wait), error
                if not error.busy or time.monotonic() + wait > until:
                    raise
                await asyncio.sleep(wait)
        raise AssertionError("unreachable: attempts are not counted")
