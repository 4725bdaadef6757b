"""Turns messages into token ids, once: a conversation only ever grows by ids that were sampled or
shown.

    context of turn 1      = chat template of the opening messages, generation prompt open
    context of turn t + 1  = context of turn t + sampled ids of turn t + what the template puts
    between

What the template puts between an assistant's message and the next generation is read off the
model's own template, by rendering a fixed stand-in conversation with and without the next message.
The sampled ids are never decoded and encoded again, which is where training and sampling drift
apart elsewhere.

Some templates show earlier turns differently once another message follows: they remove an
assistant's thinking. Then the context of turn t + 1 is the template of the whole conversation, as
the model was trained to see it, and begins anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at


class Tokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used."""

    chat_template: object
    eos_token_id: int | None

    def apply_chat_template(
        self, conversation: list[dict[str, str]], **kwargs: object
    ) -> object: ...
    def encode(self, text: str, **kwargs: object) -> list[int]: ...
    def decode(self, token_ids: Sequence[int], **kwargs: object) -> str: ...
    def __len__(self) -> int: ...


_MARK = "\u2042marl\u2042"  # no template treats it specially, no template contains it


class ChatFormat:
    """A model's chat template as ids.

    Args:
        tokenizer: The policy's own tokenizer.
        policy: Its name, for messages.
        tools: Schemas of the functions that the template shows; none where a prompt says what can
            be called.

    Raises:
        ConfigurationError: The tokenizer has no chat template, or the template does not keep a
            conversation's beginning when a message is appended, so that turns could not be told
            apart token by token.
    """

    def __init__(self, tokenizer: Tokenizer, policy: str, tools: Sequence[Mapping[str, Any]] = ()):
        if not getattr(tokenizer, "chat_template", None):
            raise ConfigurationError(
                Problem(
                    "models.no_template",
                    at(policy=policy),
                    "its tokenizer has no chat template, so messages cannot be turned into tokens",
                    fix="use an instruction-tuned model, or add `chat_template` to its "
                    "tokenizer_config.json",
                )
            )
        self.tokenizer = tokenizer
        self.policy = policy
        self.tools = tools
        self._between: dict[tuple[tuple[str, str], ...], tuple[int, ...]] = {}

    def rendered(self, messages: Sequence[dict[str, str]]) -> str:
        """Returns messages as the template writes them, the generation prompt open."""
        tools: dict[str, Any] = {"tools": list(self.tools)} if self.tools else {}
        return str(
            self.tokenizer.apply_chat_template(
                list(messages), tokenize=False, add_generation_prompt=True, **tools
            )
        )

    def opening(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Returns the ids of the opening messages, with the generation prompt open: the context of
        a first turn."""
        text = self.rendered(messages)
        return tuple(
            self.tokenizer.encode(text, add_special_tokens=False)
        )  # the template has written BOS if it uses one

    def keeps(
        self, conversation: Sequence[dict[str, str]], following: Sequence[dict[str, str]]
    ) -> bool:
        """Returns whether the template shows a conversation unchanged once other messages follow.

        Args:
            conversation: Ends with an assistant's turn; white space around that does not count,
                which many templates remove.
        """
        *earlier, last = conversation
        before, after = self.rendered(earlier), self.rendered([*conversation, *following])
        return after.startswith(before) and after[len(before) :].lstrip().startswith(
            last["content"].strip()
        )

    def shows_more(self, answers: Sequence[dict[str, str]]) -> bool:
        """Returns whether the template shows more of tools' answers than their text: a tool's name,
        or a call's id."""
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]
        named = [{**answer, "name": "?", "tool_call_id": "?"} for answer in answers]
        return self.rendered([*before, *answers]) != self.rendered([*before, *named])

    @property
    def end_of_turn(self) -> tuple[int, ...]:
        """The id that ends an assistant's turn."""
        if self.tokenizer.eos_token_id is None:
            raise ConfigurationError(
                Problem(
                    "models.no_end",
                    at(policy=self.policy),
                    "its tokenizer has no end-of-sequence token",
                )
            )
        return (self.tokenizer.eos_token_id,)

    def continuation(
        self, sampled: Sequence[int], following: Sequence[dict[str, str]]
    ) -> tuple[int, ...]:
        """Returns the ids shown between `sampled` (an assistant's turn) and the next generation,
        `following` being the messages in between.

        The template's end-of-turn token is left out where the sampled ids already end with it;
        where they were cut off by the token limit it is shown, and not trained on.
        """
        between = self._render_between(
            tuple((message["role"], message["content"]) for message in following)
        )
        if sampled and between and sampled[-1] == between[0]:
            between = between[1:]
        return between

    def _render_between(self, following: tuple[tuple[str, str], ...]) -> tuple[int, ...]:
        if following not in self._between:
            base = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
            text = self.rendered(
                [*base, *({"role": role, "content": content} for role, content in following)]
            )
            if text.count(_MARK) != 1:
                raise ConfigurationError(
                    Problem(
                        "models.template",
                        at(policy=self.policy),
                        (
                            "its chat template does not keep an assistant message unchanged when "
                            f"a {following[0][0]!r} message "
                            "follows, so a multi-turn role cannot be trained token by token"
                        ),
                        fix="set `max_turns: 1` for its roles or use another template",
                    )
                )
            after = text.split(_MARK, 1)[1]
            if len(self._between) > 1024:
                self._between.clear()
            self._between[following] = tuple(self.tokenizer.encode(after, add_special_tokens=False))
        return self._between[following]

    def text(self, ids: Sequence[int]) -> str:
        """Returns the sampled ids as text for tools and other roles, special tokens left out."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def said(self, ids: Sequence[int]) -> str:
        """Returns the sampled ids as text with the special tokens, the end of the turn left out:
        what a chat template takes, and what calls in the model's own format are found in."""
        ended = bool(ids) and ids[-1] == self.tokenizer.eos_token_id
        return self.tokenizer.decode(list(ids)[: -1 if ended else None], skip_special_tokens=False)
