"""Redaction decides what may be shown and written of text from elsewhere: without secrets, and with
control characters that do nothing.

flags     shown_flag: keys, passwords in addresses and secret fields of JSON are `***`, in plans,
          records, manifests, errors
text      Redaction: what a server says is without the secrets that it was sent, however it quotes
          them
console   inert: escape sequences, titles and changes of direction are visible, and nothing more
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, unquote

SECRETS = ("logger.wandb.key",)
"""Flags that are never written down, whatever their value."""
HIDDEN = "***"
SECRET_FIELD = re.compile(
    r"key(?!w)|token(?![si])|secret|passw|auth|credential|cookie|signature|header", re.I
)
"""Names of fields of a request whose texts are secret."""
SHORTEST_SECRET_CHARS = 8
"""Characters: what is shorter cannot be told from a word, and is no secret that a server could give
away."""
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S*", re.I)
CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""C0 without tab and line feed, delete, C1, what changes the direction of writing, and halves of
surrogate pairs."""


def inert(text: str) -> str:
    """Returns a text whose control characters are written as escapes, so that they do nothing to a
    terminal."""
    return CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), text)


def encodable(text: str) -> str:
    """Returns a text that UTF-8 can encode: half a surrogate pair becomes its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def shown_url(url: str) -> str:
    """Returns an address without what may be secret in it: a user with password, a query, a
    fragment.

    A password may hold any character unquoted, so everything up to the last @ is hidden.
    """
    start, _, place = url.rpartition("@")
    scheme = re.match(r"([a-z][a-z0-9+.-]*:)?//", start, re.I)
    hidden = f"{scheme[0] if scheme else ''}{HIDDEN}@" if start else ""
    return hidden + re.sub(r"([?#]).*", rf"\1{HIDDEN}", place, count=1, flags=re.DOTALL)


def shown_flag(name: str, value: Any) -> Any:
    """Returns what may be written of a flag's value."""
    if name in SECRETS:
        return HIDDEN if value else value
    if isinstance(value, list):
        return [shown_flag(name, inner) for inner in value]
    if isinstance(value, str) and ADDRESS.fullmatch(value):
        return shown_url(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        return _shown_json(value)
    return value


def holds_secret(name: str, words: Iterable[str]) -> bool:
    """Returns whether a flag's words may not be written as they are."""
    return any(shown_flag(name, word) != word for word in words)


def shown_args(args: SimpleNamespace, prefix: str = "") -> SimpleNamespace:
    """Returns a copy of nested flags as they may be written."""
    return SimpleNamespace(
        **{
            name: shown_args(value, f"{prefix}{name}.")
            if isinstance(value, SimpleNamespace)
            else shown_flag(f"{prefix}{name}", value)
            for name, value in vars(args).items()
        }
    )


def _shown_json(text: str) -> str:
    try:
        fields = json.loads(text)
        return json.dumps(_shown_fields(fields)) if any(_secret_texts(fields)) else text
    except (ValueError, RecursionError):
        return text  # a template, for example


def _shown_fields(value: Any, secret: bool = False) -> Any:
    if isinstance(value, dict):
        return {
            name: _shown_fields(inner, secret or bool(SECRET_FIELD.search(name)))
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_shown_fields(inner, secret) for inner in value]
    return HIDDEN if secret and isinstance(value, str) and value else value


def _secret_texts(value: Any, secret: bool = False) -> Iterator[str]:
    """The texts below fields with the name of a secret."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _secret_texts(inner, secret or bool(SECRET_FIELD.search(name)))
    elif isinstance(value, list):
        for inner in value:
            yield from _secret_texts(inner, secret)
    elif secret and isinstance(value, str) and value:
        yield value


class Redaction:
    """Takes secrets out of what a server says, and makes the rest inert.

    Args:
        keys: What authenticates with it.
        url: Its address, which may hold a password.
        fields: Fields of its requests, some of which may be secret by their names.
    """

    def __init__(
        self, keys: Iterable[str] = (), url: str = "", fields: Mapping[str, Any] | None = None
    ):
        secrets = {*keys, *_secrets_in(url), *_secret_texts(fields or {})}
        spelled = {
            way
            for secret in secrets
            for way in (secret, unquote(secret), quote(secret), quote(secret, safe=""))
        }
        spelled |= {json.dumps(secret)[1:-1] for secret in spelled}
        longest_first = sorted(
            (s for s in spelled if len(s) >= SHORTEST_SECRET_CHARS), key=len, reverse=True
        )
        self.secrets = (
            re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        )

    def redact(self, text: str) -> str:
        """Returns the text without secrets; its control characters, which may end a line that is
        read, are left."""
        return self.secrets.sub(HIDDEN, text) if self.secrets else text

    def text(self, text: str, most: int | None = None) -> str:
        """Returns the text without secrets, inert, at most so long."""
        return inert(self.redact(text))[:most]

    def values(self, value: Any) -> Any:
        """Returns JSON values with every text in them without secrets, and inert."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(name): self.values(inner) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.values(inner) for inner in value]
        return value


def _secrets_in(url: str) -> Sequence[str]:
    """Password, header and values of a query that an address holds."""
    start, _, place = url.rpartition("@")
    user = re.sub(r"^([a-z][a-z0-9+.-]*:)?//", "", start, flags=re.I)
    header = [base64.b64encode(unquote(user).encode("utf-8", "replace")).decode()] if user else []
    query = re.split(r"[?#]", place, maxsplit=1)[1:]
    return [
        user.partition(":")[2],
        *header,
        *query,
        *(part.partition("=")[2] for q in query for part in q.split("&")),
    ]
