"""Foreign text is text: what other agents, tools, documents, users and programs say never becomes a
control token of a chat template.

    hide(text) -> the text, each control token's spelling in it parted by one private character
    template   -> a rendering in which the template's own control tokens are the only ones
    encode     -> ids; where something was parted, by a copy of the tokenizer that joins the text
                  again once it has looked for control tokens

A text without such a spelling is encoded by the tokenizer itself, as if none of this were here. A
control token is one that the tokenizer calls special, or an added one whose spelling stands in the
chat template (`<tool_call>`, `<think>`).
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from marl_plugins.core.redaction import encodable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend

PARTED, KEPT = "\U0010fffd", "\U0010fffc"
"""Private characters: the first parts a spelling; together they stand for the first one itself in a
foreign text."""


class SafeText(str):
    """A text in which only sampled control tokens are spelled as such."""


class ForeignText:
    """Keeps foreign text from becoming control tokens of one tokenizer and its chat template.

    Args:
        tokenizer: A Hugging Face tokenizer. A text that was parted stays so, by one private
            character, where it has no fast backend.
    """

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        template = str(tokenizer.chat_template)
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self.special = {number: token.content for number, token in added.items() if token.special}
        """Spelling of each special token, by its id; nobody but a model itself says them."""
        self.control: dict[int, str] = self.special | {
            number: token.content
            for number, token in added.items()
            if token.content in template and _is_mark(token.content)
        }
        """Spelling of each control token, by its id."""
        self._any = beginnings(self.control.values())
        self._special = beginnings(self.special.values())

    def _pattern(self, role: str) -> re.Pattern[str]:
        """An assistant's own marks (calls, thinking) are not foreign where it says them."""
        return self._special if role == "assistant" else self._any

    def hide(self, text: str, role: str = "") -> SafeText:
        """Returns a text for a message of a chat role, for the template alone."""
        if isinstance(text, SafeText):
            return text
        escaped = text.replace(PARTED, PARTED + KEPT)
        return SafeText(self._pattern(role).sub(rf"\g<0>{PARTED}", escaped))

    def hidden_values(self, values: Any) -> Any:
        """Returns JSON values with all texts in them hidden."""
        if isinstance(values, str):
            return self.hide(values)
        if isinstance(values, Mapping):
            return {self.hide(key): self.hidden_values(value) for key, value in values.items()}
        if isinstance(values, list | tuple):
            return [self.hidden_values(value) for value in values]
        return values

    def sampled(self, ids: Sequence[int], text: str) -> SafeText:
        """Returns what was sampled for a template that shows it again: control tokens that were
        sampled as characters stay characters.

        Args:
            text: The ids as text, with special tokens.
        """
        own = [number for number in ids if number in self.control]
        if len(self._any.findall(text)) == len(own) and PARTED not in text:
            return SafeText(text)
        again, piece = "", list[int]()
        for number in [*ids, -1]:
            if number >= 0 and number not in self.control:
                piece.append(number)
                continue
            again += self.hide(self.tokenizer.decode(piece, skip_special_tokens=False))
            again += self.control.get(number, "")
            piece = []
        return SafeText(again)

    def count(self, shown: Iterable[tuple[str, str]]) -> int:
        """Returns how many control tokens are spelled in messages, given as chat role and text."""
        return sum(len(self._pattern(role).findall(text)) for role, text in shown)

    def encode(self, rendered: str) -> list[int]:
        """Returns the ids of what a template has made of texts that were hidden; half a surrogate
        pair, which no tokenizer takes, is written as its escape."""
        rendered = encodable(rendered)
        if PARTED in rendered and self._joining is not None:
            return list(self._joining.encode(rendered, add_special_tokens=False).ids)
        return list(self.tokenizer.encode(rendered, add_special_tokens=False))

    @cached_property
    def _joining(self) -> Backend | None:
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        return backend and joining(backend.to_str(), frozenset(self.control.values()))

    def unsafe(self, rendered: str) -> list[str]:
        """Returns the control tokens that this tokenizer cannot keep apart from text.

        Args:
            rendered: A conversation; where the copy of the tokenizer encodes it otherwise than the
                tokenizer, all of them.
        """
        joining, names = self._joining, list(self.control.values())
        if joining is None:
            return []
        rendered = encodable(rendered)
        if joining.encode(rendered, add_special_tokens=False).ids != self.encode(rendered):
            return names
        text = self.hide(" ".join(["", *names, ""]))
        left = {*self.encode(text)} - {self.tokenizer.unk_token_id}
        return [name for number, name in self.control.items() if number in left]


def _is_mark(token: str) -> bool:
    """Returns whether an added token may be one of a template's marks: a word, or brackets alone,
    stand in the source of any template."""
    return any(map(str.isalpha, token)) and not token.strip().isalnum()


def beginnings(tokens: Iterable[str]) -> re.Pattern[str]:
    """Returns the pattern of the first character of each of the tokens, wherever one stands, also
    inside another."""
    rests = defaultdict(list)
    for token in sorted(tokens):
        rests[token[:2]].append(re.escape(token[2:]))
    heads = (
        f"{re.escape(head[0])}(?={re.escape(head[1:])}(?:{'|'.join(rest)}))"
        for head, rest in rests.items()
    )
    return re.compile("|".join(heads) or "(?!)")


@lru_cache(maxsize=4)
def joining(tokenizer: str, control: frozenset[str]) -> Backend:
    """Returns a copy of a tokenizer that takes the parting character out where it no longer looks
    for control tokens: in the normaliser, which what is not one of them goes through.

    Args:
        tokenizer: As JSON.
    """
    from tokenizers import Regex, Tokenizer, normalizers

    values = json.loads(tokenizer)
    for token in values["added_tokens"]:
        token["normalized"] = token["normalized"] and token["content"] not in control
    copy = Tokenizer.from_str(json.dumps(values))
    own = [copy.normalizer] if copy.normalizer else []
    joined = normalizers.Replace(Regex(f"{PARTED}(?!{KEPT})"), "")
    kept = normalizers.Replace(PARTED + KEPT, PARTED)
    copy.normalizer = normalizers.Sequence([joined, kept, *own])
    copy.no_truncation()
    copy.no_padding()
    return copy
