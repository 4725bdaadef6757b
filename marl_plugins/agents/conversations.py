"""Finds the conversation that a request goes on with.

A client sends all messages each time. The longest beginning that ends with an answer of the same role, which was offered the same
tools, is not rendered again: its ids are those that were shown and sampled. A message is the same one whether its content is null,
empty or a list of parts, and however the JSON of its calls' arguments is spaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

from marl_plugins.agents.requests import Message, SentTool
from marl_plugins.core.trajectory import Action


@dataclass(frozen=True)
class Prefix:
    """The part of a request that is known.

    Args:
        before: The answer with which it ends; None: nothing is.
        count: The number of its messages.
        digest: Of all messages of the request, to which the answer is added.
        reason: Why the request begins a sequence of its own although it has a history; empty where it does not.
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
        self._continued: set[str] = set()

    def beginning(self, role: str, tools: Sequence[SentTool], messages: Sequence[Message]) -> Prefix:
        """Returns what is known of a role's request, and notes that it goes on with that."""
        shown = [tool.model_dump() for tool in tools]
        digest = hashlib.blake2b(json.dumps([role, shown], sort_keys=True).encode(), digest_size=16).digest()
        before, count = None, 0
        for number, message in enumerate(messages):
            digest = chained(digest, message)
            if message.role == "assistant" and number + 1 < len(messages) and digest in self._known:
                before, count = self._known[digest], number + 1
        reason = self._reason(role, before, messages[count:])
        if before is not None:
            self._continued.add(before.path)
        return Prefix(before, count, digest, reason)

    def add(self, beginning: Prefix, answer: Message, action: Action) -> None:
        """Notes an answer: requests whose messages begin with it go on from there."""
        self._known[chained(beginning.digest, answer)] = action
        self._said.setdefault(action.role, set()).add(answer.text.strip())

    def _reason(self, role: str, before: Action | None, new: Sequence[Message]) -> str:
        """Returns why a sequence begins: another request has gone on from there (`branch`), or its history is not what was shown.

        Of the latter, `history`: the answer is the role's own, and what stands before it is not; `role`: another role said it;
        `edited`: nobody did.
        """
        last = next((message for message in reversed(new) if message.role == "assistant"), None)
        if last is None:
            return "branch" if before is not None and before.path in self._continued else ""
        text = last.text.strip()
        if text in self._said.get(role, ()):
            return "history"
        return "role" if any(text in said for said in self._said.values()) else "edited"


def chained(before: bytes, message: Message) -> bytes:
    """Returns the digest of messages and one more."""
    calls = [[call.id, call.function.name, _canonical(call.function.arguments)] for call in message.tool_calls or ()]
    content = json.dumps([message.shown_role, message.text.strip(), calls, message.tool_call_id])
    return hashlib.blake2b(before + content.encode(), digest_size=16).digest()


def _canonical(arguments: str) -> str:
    """The JSON of a call's arguments, spelled one way."""
    try:
        return json.dumps(json.loads(arguments or "{}"), sort_keys=True)
    except (ValueError, RecursionError):
        return arguments
