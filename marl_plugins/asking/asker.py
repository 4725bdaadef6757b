"""An `Asker` is a plugin's way to ask a language model for judgements; it is made of layers.

    judge    cache.py      kept, replayed, or being asked for right now: the same question is asked
                           once
             speaker.py    or: the next turn of a conversation, whose words are the answer
             question.py   a prompt with a nonce, a strict reading, one second question; a deadline
                           over all of it
    send     repeats.py    what may pass is repeated after a pause
             limits.py     slots, requests per minute, a budget
             transport.py  an OpenAI-compatible endpoint, and what its failures mean;
                           or policy.py: a policy of the run, without cache and limits
    ask      chat.py       the protocol: a conversation goes out, an answer comes back and is read
                           (reading.py)
             exchange.py   HTTP, bounded in time and bytes

Each layer knows the next one only. Messages name the flags of the plugin that asks
(`--coach.timeout`) by its prefix.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins.asking.cache import Cache, KeptAnswers
from marl_plugins.asking.endpoint import CoachEndpoint
from marl_plugins.asking.limits import AskingLimits, SpendingBudget
from marl_plugins.asking.policy import PolicyTransport, derived_nonce
from marl_plugins.asking.question import Questioner, random_nonce
from marl_plugins.asking.repeats import Repeats
from marl_plugins.asking.request import (
    Form,
    Judgement,
    JudgementLayer,
    JudgeRequest,
    RequestTally,
    Transport,
)
from marl_plugins.asking.speaker import Speaker, Turn
from marl_plugins.core.redaction import Redaction

if TYPE_CHECKING:
    from marl_plugins.core.run import Run


class Asker:
    """Asks for judgements. One for the whole run, in its event loop: its limits are the run's.

    Args:
        questioner: The outermost layer but the cache; its form is what `probe` finds. A `Speaker`
            takes a `Turn` in place of a request.
        transport: The innermost layer.
        tally: What the layers count in.
        cache: Around the questioner, where there is one.
        budget: What the inner layers spend, where it is counted.
    """

    def __init__(
        self,
        questioner: Questioner | Speaker,
        transport: Transport,
        tally: RequestTally,
        cache: Cache[Any] | None = None,
        budget: SpendingBudget | None = None,
    ):
        self.questioner = questioner
        self.transport = transport
        self.tally = tally
        self.cache = cache
        self.budget = budget

    async def judge(self, request: JudgeRequest | Turn) -> Judgement:
        """Returns the judgement.

        Raises:
            InfrastructureFailure: It is unavailable.
            RunPaused: So are all further ones.
        """
        outermost: JudgementLayer[Any] = self.cache or self.questioner
        return await outermost.judge(request)

    @property
    def form(self) -> Form:
        """The form in which answers are asked for and read."""
        return self.questioner.form

    @property
    def replays(self) -> bool:
        """Returns whether all answers come from a recording."""
        return self.cache is not None and self.cache.kept.replay

    def open(self, account: Path, resumed: bool) -> None:
        """Opens the files of kept answers, and the account of what is spent.

        Raises:
            ConfigurationError: A file cannot be read or written.
        """
        if self.budget is not None:
            self.budget.open(account, resumed)
        if self.cache is not None:
            self.cache.kept.open()

    async def probe(self, request: JudgeRequest) -> None:
        """Tries it before anything is started, and settles the form of the answers.

        Raises:
            ConfigurationError: Nobody answers, or not in the form that was asked for.
        """
        if not self.replays:
            self.questioner.form = await self.transport.probe(request)

    async def close(self) -> None:
        """Ends what is still being asked, and closes the connections and files; a later judgement
        opens new connections."""
        if self.cache is not None:
            await self.cache.close()
        await self.transport.close()

    def spent(self) -> str | None:
        """Returns the budget that is used up, with its flag, or None."""
        return self.budget.spent() if self.budget is not None else None

    def metrics(self) -> dict[str, float]:
        """Counts and seconds since the last call, tokens and dollars since the run began."""
        counts, seconds = self.tally.take()
        metrics = {name: float(counts[name]) for name in self.tally.names}
        if seconds:
            metrics["seconds/mean"] = statistics.fmean(seconds)
            metrics["seconds/p99"] = sorted(seconds)[int(0.99 * (len(seconds) - 1))]
        if self.budget is not None:
            metrics["tokens"] = float(self.budget.spent_in + self.budget.spent_out)
            if self.budget.price != (0.0, 0.0):
                metrics["cost"] = self.budget.cost
        return metrics


def endpoint_asker(
    endpoint: CoachEndpoint,
    budget: SpendingBudget | None = None,
    kept: KeptAnswers | None = None,
    speaks: bool = False,
) -> Asker:
    """Asks an endpoint, within its limits.

    Args:
        speaks: It continues conversations (`Turn`), and judges nothing.
    """
    from marl_plugins.asking.transport import EndpointTransport  # requires what is optional

    budget = budget or SpendingBudget(endpoint.prefix)
    tally = RequestTally("requests", "repeats", "cached", "asked_again")
    transport = EndpointTransport(endpoint, budget, tally)
    limits = AskingLimits(transport, budget, endpoint)
    repeats = Repeats(limits, endpoint.retries, tally)
    form: Form = "text" if endpoint.form == "auto" else endpoint.form
    redaction, kept = endpoint.redaction, kept or KeptAnswers(endpoint.prefix)
    if speaks:
        speaker = Speaker(repeats, endpoint, limits.under_way)
        turns = Cache(speaker, kept, lambda turn: turn.key(endpoint), tally, redaction)
        return Asker(speaker, transport, tally, turns, budget)
    questioner = Questioner(
        repeats,
        form,
        endpoint.prefix,
        endpoint.deadline,
        random_nonce,
        tally,
        redaction,
        limits.under_way,
    )
    cache = Cache(questioner, kept, endpoint.key, tally, redaction)
    return Asker(questioner, transport, tally, cache, budget)


def policy_asker(run: Run, policy: str, *, prefix: str, max_tokens: int, deadline: float) -> Asker:
    """Asks a policy of the run; how many requests run at once is left to its engines.

    Args:
        policy: Its name.
        max_tokens: Length of one answer.
        deadline: Seconds of one judgement, both its questions included.
    """
    tally = RequestTally("requests", "asked_again")
    transport = PolicyTransport(run, policy, max_tokens, tally)
    questioner = Questioner(
        transport, "text", prefix, deadline, derived_nonce(run.args.train.seed), tally, Redaction()
    )
    return Asker(questioner, transport, tally)
