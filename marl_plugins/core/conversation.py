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

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property
from typing import Any, Protocol, Self

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.foreign import ForeignText, SafeText
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.templates import in_channels, wrong_arguments


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
THINKING = {"<think>": "</think>", "[THINK]": "[/THINK]", "<|channel>": "<channel|>"}
"""Marks between which models think, where they are tokens of their own."""


class ChatFormat:
    """A model's chat template as ids.

    Args:
        tokenizer: The policy's own tokenizer.
        policy: Its name, for messages.
        tools: Schemas of the functions that the template shows; none where a prompt says what can
            be called.
        arguments: What the template is given beside the messages (`template:`).
        day: What it is told where it asks for today's date; default: the day of this call.
        ends: Ids that end a turn, beside the tokenizer's own and the template's.

    Raises:
        ConfigurationError: The tokenizer has no chat template, the template takes no such argument
            or writes answers in channels, or it does not keep a conversation's beginning when a
            message is appended, so that turns could not be told apart token by token.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        policy: str,
        tools: Sequence[Mapping[str, Any]] = (),
        arguments: Mapping[str, Any] | None = None,
        day: date | None = None,
        ends: Collection[int] = (),
    ):
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
        self.foreign = ForeignText(tokenizer)
        self._arguments: dict[str, Any] = {}
        if "strftime_now" in str(tokenizer.chat_template):
            self._arguments["strftime_now"] = (day or date.today()).strftime
        self._ends = frozenset(ends)
        self._set(tools, arguments or {})

    def _set(self, tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]) -> None:
        template = self.tokenizer.chat_template
        if wrong := [*in_channels(template), *wrong_arguments(template, arguments)]:
            raise ConfigurationError(problem.within(policy=self.policy) for problem in wrong)
        self.tools = tools
        self._arguments = {**self._arguments, **arguments}
        if tools:
            self._arguments["tools"] = self.foreign.hidden_values(tools)
        else:
            self._arguments.pop("tools", None)
        self._between: dict[tuple[tuple[str, str], ...], tuple[int, ...]] = {}
        for derived in ("_opens_thinking", "_writes_thinking"):
            vars(self).pop(derived, None)

    def given(
        self, tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any] | None = None
    ) -> Self:
        """Returns the format with other tools, and with more arguments."""
        other = copy.copy(self)
        other._set(tools, arguments or {})
        return other

    def rendered(self, messages: Sequence[dict[str, str]], prompt: bool = True) -> str:
        """Returns messages as the template writes them, the generation prompt open; foreign text in
        them hidden (core/foreign.py)."""
        safe = [
            {**message, "content": self.foreign.hide(message["content"], message["role"])}
            for message in messages
        ]
        if self._writes_thinking:
            safe = [_parted(message) for message in safe]
        return self._written(safe, prompt)

    def _written(self, safe: list[dict[str, str]], prompt: bool) -> str:
        return str(
            self.tokenizer.apply_chat_template(
                safe, tokenize=False, add_generation_prompt=prompt, **self._arguments
            )
        )

    @cached_property
    def _writes_thinking(self) -> bool:
        """Whether the template writes thinking from `reasoning_content` alone: before that which
        stands in an answer it puts another one, which is empty."""
        if "reasoning_content" not in str(self.tokenizer.chat_template):
            return False
        said = {"role": "assistant", "content": "<think>\n?\n</think>\n\n?"}
        written = self._written([{"role": "user", "content": "?"}, said], prompt=False)
        return written.count("</think>") > 1

    def opening(self, messages: Sequence[dict[str, str]]) -> tuple[int, ...]:
        """Returns the ids of the opening messages, with the generation prompt open: the context of
        a first turn."""
        # the template has written BOS if it uses one
        return tuple(self.foreign.encode(self.rendered(messages)))

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
            self.foreign.hide(last["content"], last["role"]).strip()
        )

    def shows_more(self, answers: Sequence[dict[str, str]]) -> bool:
        """Returns whether the template shows more of tools' answers than their text: a tool's name,
        or a call's id."""
        before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]
        named = [{**answer, "name": "?", "tool_call_id": "?"} for answer in answers]
        return self.rendered([*before, *answers]) != self.rendered([*before, *named])

    @cached_property
    def _closes(self) -> int | None:
        """The id with which the template ends an assistant's turn; None where it has none."""
        said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": _MARK}]
        try:
            after = self.rendered(said, prompt=False).partition(_MARK)[2]
        except Exception:  # it wants a user's message after an assistant's
            return None
        return next((i for i in self.foreign.encode(after)[:1] if i in self.foreign.control), None)

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids that end an assistant's turn."""
        own = (self.tokenizer.eos_token_id, self._closes)
        return self._ends.union(end for end in own if end is not None)

    @property
    def stops(self) -> tuple[int, ...]:
        """The template's end, where the model's own configuration does not name it."""
        return tuple(self.ends - self._ends - {self.tokenizer.eos_token_id})

    @property
    def end_of_turn(self) -> tuple[int, ...]:
        """The id that ends an assistant's turn: the template's, or the tokenizer's."""
        end = self.tokenizer.eos_token_id if self._closes is None else self._closes
        if end is None:
            raise ConfigurationError(
                Problem(
                    "models.no_end",
                    at(policy=self.policy),
                    "its tokenizer has no end-of-sequence token",
                )
            )
        return (end,)

    def continuation(
        self, sampled: Sequence[int], following: Sequence[dict[str, str]]
    ) -> tuple[int, ...]:
        """Returns the ids shown between `sampled` (an assistant's turn) and the next generation,
        `following` being the messages in between.

        The template's end-of-turn token is left out where the sampled ids already end with it, or
        with another one; where they were cut off by the token limit it is shown, and not trained
        on.
        """
        between = self._render_between(
            tuple((message["role"], message["content"]) for message in following)
        )
        if sampled and between:
            last, first = sampled[-1], between[0]
            if last == first or {last, first} <= self.ends:
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
            self._between[following] = tuple(self.foreign.encode(after))
        return self._between[following]

    @cached_property
    def _opens_thinking(self) -> bool:
        """Whether the generation prompt has begun to think."""
        asked = [{"role": "user", "content": _MARK}]
        prompt = self.rendered(asked).partition(_MARK)[2]
        return any(prompt.rfind(begin) > prompt.rfind(end) for begin, end in THINKING.items())

    def thought(self, ids: Sequence[int]) -> int:
        """Returns how many of the sampled ids, from the first, are the model's thinking with its
        marks; all of them where it has not ended."""
        control = self.foreign.control
        marks = [(n, control[i]) for n, i in enumerate(ids) if i in control]
        if closed := [n + 1 for n, mark in marks if mark in THINKING.values()]:
            return closed[-1]
        thinks = not THINKING.keys().isdisjoint(control.values())
        opened = any(mark in THINKING for _, mark in marks)
        return len(ids) if opened or (thinks and self._opens_thinking) else 0

    def defused(self, shown: Iterable[tuple[str, str]]) -> int:
        """Returns how many control tokens foreign text spells in messages, as chat role and
        text."""
        return self.foreign.count(shown)

    def text(self, ids: Sequence[int]) -> str:
        """Returns what was said as text for graders, coaches, tools and other roles: the sampled
        ids that follow the thinking, special tokens left out."""
        thought = self.thought(ids)
        text = self.tokenizer.decode(list(ids)[thought:], skip_special_tokens=True)
        return text.lstrip() if thought else text

    def said(self, ids: Sequence[int]) -> str:
        """Returns the sampled ids as text with the special tokens, the end of the turn left out:
        what calls in the model's own format are found in."""
        return self.tokenizer.decode(self._unended(ids), skip_special_tokens=False)

    def said_again(self, ids: Sequence[int]) -> SafeText:
        """Returns the same for a chat template that shows it again."""
        return self.foreign.sampled(self._unended(ids), self.said(ids))

    def _unended(self, ids: Sequence[int]) -> list[int]:
        return list(ids)[: -1 if ids and ids[-1] in self.ends else None]


def _parted(message: dict[str, str]) -> dict[str, str]:
    """Returns an assistant's message with its thinking apart, as some templates read it."""
    thought, ended, said = message["content"].rpartition("</think>")
    if message["role"] != "assistant" or not ended:
        return message
    thought = thought.lstrip().removeprefix("<think>").strip("\n")
    return {**message, "reasoning_content": thought, "content": said.lstrip("\n")}
