"""The exchange of whole trajectories between a step's rollout and credit, by the hook
`marl_exchange`."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.exchange import (
    MOST_CHARS_PER_TOKEN,
    SCHEMA_VERSION,
    AnswerWords,
    RefusedRecord,
    TrajectoryWords,
    read_words,
)
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.roles import Call, RoleSpec
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory
from marl_plugins.core.trajectory_builder import digest_of_shown
from marl_plugins.engine.records.tokenizers import digest_of_tokenizer

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.session import Session

MOST_AT_ONCE = 16
"""Records that are read at the same time, those of all plugins together; programs among them have
the sandbox's own limit."""
LONGEST_ORIGIN_CHARS = 200


class StepExchange:
    """An `Exchange` (core/exchange.py) of one step.

    Args:
        current: The tasks of the step.
        own: The trajectories of its rollout.
    """

    def __init__(
        self, session: Session, step: int, current: Sequence[Task], own: Sequence[Trajectory]
    ):
        self.step = step
        self.current = current
        self.tasks = session.tasks_by_id
        self._places = {task.id: place for place, task in enumerate(current)}
        self.received: dict[Trajectory, None] = {}
        """What has been read, as it finished."""
        self.left: dict[Trajectory, str] = {}
        """The trajectories of the rollout that are left out, with the reason."""
        self.session = session
        self._own = set(own)
        self._known: set[tuple[str, str, int]] = set()
        self._free = asyncio.Semaphore(MOST_AT_ONCE)
        self._digests: dict[str, str] = {}

    def write(self, trajectory: Trajectory) -> dict[str, object]:
        """See `Exchange.write`."""
        if trajectory.infrastructure_failure:
            raise ValueError(
                f"trajectory {trajectory.name} was lost ({trajectory.infrastructure_failure}); "
                "send others"
            )
        roles = {
            a.role: self.session.cast.played_by(a.role, a.policy).chat for a in trajectory.actions
        }
        words = TrajectoryWords(
            schema=SCHEMA_VERSION,
            task=trajectory.task.id,
            prompt=trajectory.task.prompt,
            sample=trajectory.sample,
            outcome=trajectory.outcome,
            tokenizers={role: self._digest(chat) for role, chat in roles.items()},
            answers=tuple(_words_of(action, roles[action.role]) for action in trajectory.actions),
        )
        return words.model_dump(mode="json", by_alias=True)

    async def read(
        self,
        record: Mapping[str, object] | TrajectoryWords,
        origin: str,
        policy: str | None = None,
        task: Task | None = None,
    ) -> Trajectory:
        """See `Exchange.read`."""
        check_origin(origin)
        words = read_words(record)
        task = self._task_of(words, task)
        roles = self.session.cast(task, self.step, self._places.get(task.id), policy)
        trajectory = await self._said(words, task, roles, origin)
        trajectory.learner = policy or ""
        return trajectory

    async def again(self, trajectory: Trajectory, origin: str) -> Trajectory:
        """See `Exchange.again`."""
        check_origin(origin)
        words = TrajectoryWords.model_validate(self.write(trajectory))
        task, cast = self._task_of(words), self.session.cast
        players = {a.role: cast.played_by(a.role, a.policy) for a in trajectory.actions}
        roles = cast(task, self.step, self._places.get(task.id)) | players
        repeated = await self._said(
            words, task, roles, origin, [a.generation for a in trajectory.actions]
        )
        repeated.replayed = True
        return repeated

    async def ask(self, task: Task, policy: str | None = None) -> Trajectory:
        """See `Exchange.ask`."""
        place, roles = len(self.current), self.session.cast(task, self.step, None, policy)
        return await self.session.rollout.one(
            task, place, 0, self.step, None, roles=roles, scored=False
        )

    def _task_of(self, words: TrajectoryWords, default: Task | None = None) -> Task:
        task = self.tasks.get(words.task, default)
        if task is None or (task.id, task.prompt) != (words.task, words.prompt):
            raise RefusedRecord(
                "task",
                f"task {words.task!r:.80} is {'no' if task is None else 'another'} task of this "
                "run",
            )
        return task

    async def _said(
        self,
        words: TrajectoryWords,
        task: Task,
        roles: Mapping[str, RoleSpec],
        origin: str,
        sampled: Sequence[Generation] = (),
    ) -> Trajectory:
        """Lets the workflow say the words of a record.

        Args:
            sampled: What this run has sampled as its answers, one each.
        """
        name = (words.task, origin, words.sample)
        if name in self._known:
            raise RefusedRecord(
                "repeated",
                f"sample {words.sample} of task {words.task!r:.80} from {origin} is here already",
            )
        self._known.add(name)
        place = len(self.current) + len(self._known)
        async with self._free:
            speaker = _Speaker(self, words, sampled)
            rollout = self.session.rollout
            trajectory = await rollout.one(
                task,
                place,
                words.sample,
                self.step,
                rollout.score_action,
                roles=roles,
                generate=speaker.answer,
                origin=origin,
            )
        speaker.check(trajectory)
        self.received[trajectory] = None
        return trajectory

    def leave_out(self, trajectory: Trajectory, reason: str) -> None:
        """See `Exchange.leave_out`."""
        if not reason:
            raise ValueError(f"trajectory {trajectory.name} is left out without a reason")
        if trajectory not in self._own:
            raise ValueError(
                f"trajectory {trajectory.name} is not of this step's rollout; what was read is "
                "just not returned"
            )
        self.left[trajectory] = reason

    def entered(self, answer: Sequence[Trajectory]) -> list[Trajectory]:
        """Returns what of a plugin's answer has been read, in the order in which reading began,
        whichever finished first."""
        chosen = set(answer)
        return sorted((t for t in self.received if t in chosen), key=lambda t: t.order)

    def has_tokenizer(self, words: TrajectoryWords, role: str, chat: ChatFormat) -> bool:
        """Returns whether a record's ids of a role are ids of this run's tokenizer."""
        digest = self._digest(chat)
        return bool(digest) and words.tokenizers.get(role) == digest

    def _digest(self, chat: ChatFormat) -> str:
        policy = chat.policy
        if policy not in self._digests:
            self._digests[policy] = digest_of_tokenizer(chat.tokenizer) or ""
        return self._digests[policy]


class _Speaker:
    """Answers a workflow's requests with the words of a record.

    Args:
        sampled: What this run has sampled as its answers, one each; empty where it has not.
    """

    def __init__(
        self, exchange: StepExchange, words: TrajectoryWords, sampled: Sequence[Generation] = ()
    ):
        self._exchange = exchange
        self._words = words
        self._left: defaultdict[tuple[str, str], deque[tuple[AnswerWords, Generation | None]]] = (
            defaultdict(deque)
        )
        for answer, generation in zip_longest(words.answers, sampled):
            self._left[answer.role, answer.shown].append((answer, generation))
        self._refused: RefusedRecord | None = None

    async def answer(self, call: Call) -> Generation:
        """Returns what the record has for a request.

        Raises:
            InfrastructureFailure: The record is refused; this ends the workflow.
        """
        try:
            return self._answer(call)
        except RefusedRecord as refused:
            self._refused = self._refused or refused
            raise InfrastructureFailure("exchange", str(refused)) from None

    def _answer(self, call: Call) -> Generation:
        """Twins have answers in their order, as those have that name no words shown."""
        answers = self._left.get((call.role, call.shown)) or self._left.get((call.role, ""))
        if not answers:
            raise RefusedRecord(
                "words", f"it has no answer of role {call.role!r} to what that is shown here"
            )
        (answer, sampled), session = answers.popleft(), self._exchange.session
        version = session.policies[call.policy].version
        if sampled is not None:
            return replace(sampled, version=version, changes=())
        ids = self._ids(answer, session.cast.played_by(call.role, call.policy).chat, call)
        finish = "length" if answer.end == "length" else "stop"
        # What a row is trained with is the trainer's to say (`forwarded` of
        # engine/runtime/experience.py).
        return Generation(ids, (answer.logprob,) * len(ids), finish, call.policy, version)

    def check(self, trajectory: Trajectory) -> None:
        """The workflow has said the record, all of it, and nothing else.

        Raises:
            RefusedRecord: It has not.
        """
        if self._refused is not None:  # even where the workflow has gone on without the answer
            raise self._refused
        if trajectory.infrastructure_failure:
            raise RefusedRecord("lost", f"{trajectory.infrastructure_failure}: {trajectory.detail}")
        if left := sum(map(len, self._left.values())):
            raise RefusedRecord(
                "unasked",
                f"the workflow has not asked for {left} of its {len(self._words.answers)} answers",
            )

    def _ids(self, answer: AnswerWords, chat: ChatFormat, call: Call) -> tuple[int, ...]:
        # A special token in the middle would open a turn wherever the answer is shown again.
        plain = chat.foreign.special.keys().isdisjoint(answer.ids[:-1])
        if answer.ids and plain and self._exchange.has_tokenizer(self._words, call.role, chat):
            ids, size = answer.ids, len(chat.tokenizer)
            if not all(0 <= number < size for number in ids):
                got = f"the answer of role {call.role!r} has ids that are not in 0 ... {size - 1}"
                raise RefusedRecord("text", got)
        else:
            ids = ()
        return ids_of(answer, chat, call.max_tokens, ids)


def check_origin(origin: str) -> None:
    """Raises `ValueError` where an origin names nobody."""
    if not origin or len(origin) > LONGEST_ORIGIN_CHARS or not origin.isprintable():
        raise ValueError(
            f"origin {origin!r:.80} names nobody; expected 1 to {LONGEST_ORIGIN_CHARS} printable "
            "characters"
        )


def ids_of(
    answer: AnswerWords, chat: ChatFormat, most: int, ids: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Returns the ids of an answer, which say its text again.

    Args:
        most: Tokens that the answer may have.
        ids: Its ids, where they are known.

    Raises:
        RefusedRecord: It is too long, or is not what its ids say.
    """
    of = f"the answer of role {answer.role!r}"
    if not ids:
        if len(answer.text) > MOST_CHARS_PER_TOKEN * (most + 1):
            long = f"{of} has {len(answer.text)} characters, for {most} tokens at most"
            raise RefusedRecord("length", long)
        if "\ufffd" in answer.text:  # a part of a character: other ids would give it too
            raise RefusedRecord("text", f"{of} holds U+FFFD")
        ids = encoded(chat, answer)
    ends = [number in chat.ends for number in ids]
    ends_once = not any(ends[:-1]) and any(ends) == (answer.end == "eos")
    if not ends_once or chat.said(ids) != answer.text:
        raise RefusedRecord("text", f"{of} is not what its ids say in this policy's tokenizer")
    if len(ids) > most:
        raise RefusedRecord("length", f"{of} has {len(ids)} tokens, of at most {most}")
    return ids


def encoded(chat: ChatFormat, answer: AnswerWords) -> tuple[int, ...]:
    """Returns the ids of an answer. What looks like a special token stays text, and the turn ends
    where it ended."""
    ids = chat.foreign.encode(chat.foreign.hide(answer.text, "assistant"))
    return (*ids, *(chat.end_of_turn if answer.end == "eos" else ()))


def _words_of(action: Action, chat: ChatFormat) -> AnswerWords:
    ids, logprobs = action.generation.ids, action.generation.logprobs
    ended = bool(ids) and ids[-1] in chat.ends
    return AnswerWords(
        role=action.role,
        shown=digest_of_shown(action),
        text=chat.said(ids),
        end="eos" if ended else "length" if action.generation.finish == "length" else "stop",
        logprob=min(0.0, sum(logprobs) / len(logprobs)) if logprobs else 0.0,
        ids=ids,
    )
