"""Finds the conversation that a request goes on with.

A client sends all messages each time. The longest beginning that ends with an answer of the same
role, which was offered the same
tools, is not rendered again: its ids are those that were shown and sampled. A message is the same
one whether its content is null, empty or a list of parts. A call is the one whose id it has,
whatever its arguments are now: clients space their JSON, add defaults and trim texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from marl_plugins.builtin.agents.requests import Message, SentTool
from marl_plugins.core.trajectory import Action, path_order


@dataclass(frozen=True)
class Prefix:
    """The part of a request that is known.

    Args:
        before: The answer with which it ends; None: nothing is.
        count: The number of its messages.
        digest: Of all messages of the request, to which the answer is added.
        reason: Why the request begins a sequence of its own although it has a history; empty where
            it does not.
    """

    before: Action | None
    count: int
    digest: bytes
    reason: str


class Conversations:
    """The conversations of one trajectory: its answers, by a digest of all messages up to each."""

    def __init__(self) -> None:
        self._known: dict[bytes, Action] = {}
        self._said: dict[str, set[str]] = {}
        self._calls: set[str] = set()
        """The ids of the calls in answers."""
        self._continued: dict[str, list[Action]] = {}
        """The first turns of the calls that went on from an answer, by its path."""

    def beginning(
        self, role: str, tools: Sequence[SentTool], messages: Sequence[Message]
    ) -> Prefix:
        """Returns what is known of a role's request."""
        shown = [tool.model_dump() for tool in tools]
        digest = hashlib.blake2b(
            json.dumps([role, shown], sort_keys=True).encode(), digest_size=16
        ).digest()
        before, count = None, 0
        for number, message in enumerate(messages):
            digest = self._chained(digest, message)
            if message.role == "assistant" and number + 1 < len(messages) and digest in self._known:
                before, count = self._known[digest], number + 1
        return Prefix(before, count, digest, self._reason(role, messages[count:]))

    def add(self, beginning: Prefix, answer: Message, action: Action) -> None:
        """Notes an answer: requests whose messages begin with it go on from there. Of equal answers
        to equal requests it is the first by its path, because arrival depends on timing."""
        self._calls.update(call.id for call in answer.tool_calls or ())
        digest = self._chained(beginning.digest, answer)
        self._known[digest] = min(
            self._known.get(digest, action), action, key=lambda known: path_order(known.path)
        )
        self._said.setdefault(action.role, set()).add(answer.text.strip())
        if beginning.before is not None:
            turns = action.conversation
            first = next(turn for turn in turns if turn.before is beginning.before)
            self._continued.setdefault(beginning.before.path, []).append(first)

    def branches(self) -> Iterator[Action]:
        """Yields all but one of the turns that have gone on from the same answer; by their paths,
        as arrival depends on timing."""
        for turns in self._continued.values():
            yield from sorted(turns, key=lambda turn: path_order(turn.path))[1:]

    def _reason(self, role: str, new: Sequence[Message]) -> str:
        """Returns why a sequence begins whose history is not what was shown; empty where it is.

        `history`: the answer is the role's own, and what stands before it is not; `role`: another
        role said it; `edited`: nobody did.
        """
        last = next((message for message in reversed(new) if message.role == "assistant"), None)
        if last is None:
            return ""
        text = last.text.strip()
        if text in self._said.get(role, ()):
            return "history"
        return "role" if any(text in texts for texts in self._said.values()) else "edited"

    def _chained(self, before: bytes, message: Message) -> bytes:
        """Returns the digest of messages and one more."""
        calls = [
            [call.id]
            if call.id in self._calls
            else [call.id, call.function.name, call.function.arguments]
            for call in message.tool_calls or ()
        ]
        content = json.dumps(
            [message.shown_role, message.text.strip(), calls, message.tool_call_id]
        )
        return hashlib.blake2b(before + content.encode(), digest_size=16).digest()
