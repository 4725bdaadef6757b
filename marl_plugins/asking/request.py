"""Values that layers pass on: what is asked, in which conversation; and the protocols of the
layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from marl_plugins.asking.reading import UNREADABLE
from marl_plugins.core.failures import InfrastructureFailure

if TYPE_CHECKING:
    from marl_plugins.core.run import Answer

Message = dict[str, str]
Judgement = dict[str, Any]
Form = Literal["json", "text"]


@dataclass(frozen=True)
class JudgeRequest:
    """One thing to be judged.

    Args:
        prompt: `(nonce, form)` to the whole prompt. The nonce is a word that nobody who wrote what
            is judged can know; it marks the quoted part and the lines of the verdict.
        parse: `(answer, nonce, form)` to the judgement as JSON values, or None where the answer
            holds none.
        again: `(nonce, form)` to the second question, after an answer that held none.
        schema: JSON schema of the answer, for structured output.
        heard: Called with each answer of a policy of the run and the judgement that was read in it,
            None where there was none. With it the policy's answers are sampled as its actions are.
        work: `(answer, nonce)`, for an answer without a judgement, to the message that follows it
            where it has something done first; else None.
        depends_on: Names what the judgement depends on in addition to the prompt.
    """

    prompt: Callable[[str, str], str]
    parse: Callable[[str, str, str], Judgement | None]
    again: Callable[[str, str], str]
    schema: Mapping[str, Any]
    heard: Callable[[Answer, Judgement | None], None] | None = None
    work: Callable[[str, str], Awaitable[str | None]] | None = None
    depends_on: str = ""

    def read(self, answer: str, nonce: str, form: Form) -> Judgement | None:
        """Returns the judgement in an answer, or None; an answer that cannot be read holds none."""
        try:
            return self.parse(answer, nonce, form)
        except UNREADABLE:
            return None


@dataclass
class Inquiry:
    """The conversation in which one request is asked.

    Args:
        body: Fields of this request, which the endpoint's own replace.
        sampled: Whether a policy's answers are sampled.
        begun: When the first message was sent.
        answer: The last answer of a policy.
        finish: Why an endpoint's last answer ended, in its words: `length` where it was cut off.
        whole: Whether an answer that was cut off is taken as it is.
    """

    messages: list[Message]
    form: Form
    schema: Mapping[str, Any]
    body: Mapping[str, Any] = field(default_factory=dict)
    sampled: bool = False
    begun: float | None = None
    answer: Answer | None = None
    finish: str = ""
    whole: bool = False

    def reply(self, answer: str, text: str) -> None:
        """Continues the conversation after what the other side said."""
        self.messages += [
            {"role": "assistant", "content": answer[:4000] or "..."},
            {"role": "user", "content": text},
        ]


class TransientFailure(InfrastructureFailure):
    """A failure that may pass when the request is repeated.

    Args:
        retry_after: Seconds to wait first, where the other side named them.
    """

    def __init__(self, kind: str, detail: str, retry_after: float | None = None):
        self.retry_after = retry_after
        super().__init__(kind, detail)


R_contra = TypeVar("R_contra", contravariant=True)


class JudgementLayer(Protocol[R_contra]):
    """An outer layer: a request to a judgement.

    Raises `InfrastructureFailure` where this judgement is unavailable, `RunPaused` where all
    further ones are too.
    """

    async def judge(self, request: R_contra, /) -> Judgement: ...


class MessageLayer(Protocol):
    """An inner layer: the messages of an inquiry to the next answer; raises as `JudgementLayer`
    does."""

    async def send(self, inquiry: Inquiry) -> str: ...


class Transport(MessageLayer, Protocol):
    """The innermost layer: whoever answers."""

    async def probe(self, request: JudgeRequest) -> Form:
        """Tries it before anything is started, and finds the form in which it answers.

        Raises:
            ConfigurationError: Nobody answers, or not in the form that was asked for.
        """

    async def close(self) -> None: ...


class RequestTally:
    """Counts of the layers, which are kept until they are taken.

    Args:
        names: What `counts` may hold, for the metrics.
    """

    def __init__(self, *names: str):
        self.names = names
        self.counts: Counter[str] = Counter()
        self.seconds: list[float] = []
        """Of each judgement, from its first message on."""

    def take(self) -> tuple[Counter[str], list[float]]:
        """Counts and seconds since the last call."""
        counts, seconds = self.counts, self.seconds
        self.counts, self.seconds = Counter(), []
        return counts, seconds
