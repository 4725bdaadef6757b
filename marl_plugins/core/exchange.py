"""Experience that travels: the words of a trajectory, which another run can let its own workflow
say again.

    record = exchange.write(trajectory)             what a peer is given: words, and how each answer
        ended
    received = await exchange.read(record, origin)  the run's own workflow with these words in place
    of an engine

Ids do not travel between tokenizers, and prompts, contexts, tool answers, scores and labels do not
travel at all: the reader's own workflow, tools and graders make them. So nothing foreign but words
is trained on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import pydantic

from marl_plugins.core.trajectory import Task, Trajectory

SCHEMA_VERSION: Literal[1] = 1
"""Version of `TrajectoryWords`."""
MOST_ANSWERS = 1_000
"""Answers of one trajectory that are read."""
MOST_ANSWER_CHARS = 1_000_000
"""Characters of one answer that are read; the tokens that its role may sample bound it further."""
MOST_CHARS_PER_TOKEN = 32
"""Answers with more characters for each token that their role may sample are refused before they
are encoded, which takes seconds for a megabyte."""

RefusalReason = Literal["schema", "task", "words", "length", "text", "unasked", "lost", "repeated"]
"""Why a record is refused. `schema`: it is no record; `task`: none of this run's; `words`: the
workflow asks for an answer that the record does not have in this place; `length`: an answer is too
long; `text`: an answer cannot be encoded; `unasked`: the workflow has not asked for all of its
answers; `lost`: infrastructure failed while it was read; `repeated`: it has been read in this
step."""


class RefusedRecord(Exception):
    """A record that is not taken in; nothing of it has an effect on the run.

    Args:
        reason: For counting.
        detail: For people.
    """

    def __init__(self, reason: RefusalReason, detail: str):
        self.reason = reason
        super().__init__(detail)


class _Record(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False
    )


class AnswerWords(_Record):
    """One action of a trajectory.

    Args:
        shown: Digest of the words that the role was shown (`Call.shown`); empty: the role says this
            when it is asked next.
        text: What it said, special tokens included, without the end of its turn.
        end: How it ended: `eos` by the model's end of a turn, `stop` by another stop, `length` by
            the limit of tokens.
        logprob: Mean log-prob of its tokens under the policy that sampled them.
        ids: Its token ids, for readers with the same tokenizer (`TrajectoryWords.tokenizers`).
    """

    role: str = pydantic.Field(max_length=200)
    shown: str = pydantic.Field(max_length=64)
    text: str = pydantic.Field(max_length=MOST_ANSWER_CHARS)
    end: Literal["eos", "stop", "length"]
    logprob: float = pydantic.Field(le=0.0)
    ids: Annotated[tuple[int, ...], pydantic.FailFast()] = pydantic.Field((), strict=False)


class TrajectoryWords(_Record):
    """The words of a trajectory, as JSON values: what `Exchange.write` gives and `Exchange.read`
    takes.

    Args:
        sample: Number of the sample among those of its task, from 0.
        outcome: What the sender's grader gave; for choosing, never for training.
        tokenizers: By role, the digest of its tokenizer.
    """

    schema_version: Literal[1] = pydantic.Field(SCHEMA_VERSION, alias="schema")
    task: str = pydantic.Field(max_length=10_000)
    prompt: str = pydantic.Field(max_length=MOST_ANSWER_CHARS)
    sample: int = pydantic.Field(ge=0)
    outcome: float | None = pydantic.Field(None, ge=0.0, le=1.0)
    tokenizers: dict[str, str]
    answers: tuple[AnswerWords, ...] = pydantic.Field(strict=False, max_length=MOST_ANSWERS)


def read_words(record: object) -> TrajectoryWords:
    """Checks a record that somebody else has written.

    Raises:
        RefusedRecord: It is none (`schema`), with the first thing that is wrong.
    """
    try:
        return TrajectoryWords.model_validate(record)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the record"
        raise RefusedRecord("schema", f"{place}: {first['msg']}") from None


async def all_or_none(readings: Sequence[Coroutine[Any, Any, Trajectory]]) -> list[Trajectory]:
    """Returns what is read of a group, several at the same time (`Exchange.read`,
    `Exchange.again`), once all of it has been read.

    Raises:
        RefusedRecord: One of them is refused. What else any of them raises comes first.
    """
    answers = await asyncio.gather(*readings, return_exceptions=True)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    if failed:
        raise min(failed, key=lambda error: isinstance(error, RefusedRecord))
    return [answer for answer in answers if not isinstance(answer, BaseException)]


class Exchange(Protocol):
    """The trajectories of one step, as `marl_exchange` may take them out and bring others in."""

    @property
    def step(self) -> int:
        """The training step, from 1."""

    @property
    def tasks(self) -> Mapping[str, Task]:
        """All training tasks of the run, by id."""

    @property
    def current(self) -> Sequence[Task]:
        """The tasks of the step."""

    def write(self, trajectory: Trajectory) -> Mapping[str, object]:
        """Returns a trajectory's words as JSON values (`TrajectoryWords`).

        Raises:
            ValueError: It was lost to infrastructure, so that there is nothing whole to send.
        """

    async def read(
        self,
        record: Mapping[str, object] | TrajectoryWords,
        origin: str,
        policy: str | None = None,
        task: Task | None = None,
    ) -> Trajectory:
        """Lets the run's own workflow say a record again and returns the trajectory, scored, for
        the list that the hook returns.

        Several may be read at the same time. What is read and not returned has no effect.

        Args:
            record: As `write` gives it, or checked by `read_words`.
            origin: Names who made it; at most 200 characters, for people and for
                `Trajectory.origin`.
            policy: Says every role that it may play, and it alone is trained on the trajectory;
                default: those that play on the task in this step.
            task: What the record answers, where that is no task of this run: its label scores what
                is read.

        Raises:
            RefusedRecord: It cannot be said again word for word.
            ValueError: `origin` names nobody, or `policy` no policy that plays a role.
        """

    async def again(self, trajectory: Trajectory, origin: str) -> Trajectory:
        """Lets the workflow say a trajectory of this run again, as `read` does, by the policies
        that sampled it, with their ids and
        log-probs: its rows are off-policy, which `--algo.advantage.is_correction_level` corrects.

        Args:
            trajectory: Of an earlier step, or read from the run's records.

        Raises:
            RefusedRecord: It comes out otherwise.
            ValueError: It was lost to infrastructure, or `origin` names nobody.
        """

    async def ask(self, task: Task, policy: str | None = None) -> Trajectory:
        """Lets the system play a task with its weights of now, beside the step: it is neither
        scored nor trained on, and in no list.

        Args:
            task: Of anybody's.
            policy: As for `read`.
        """

    def leave_out(self, trajectory: Trajectory, reason: str) -> None:
        """Says why a trajectory of the step's rollout is not in the list that the hook returns.

        Raises:
            ValueError: There is no reason, or the trajectory is not of the step's rollout.
        """
