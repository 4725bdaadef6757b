"""What is wrong with an address or a variable that a recipe gives, as far as it can be known without using it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from string import Template
from urllib.parse import parse_qsl, urlsplit

from marl_plugins.core.failures import nearest
from marl_plugins.core.redaction import SECRET_FIELD


def wrong_variables(text: str) -> Iterator[str]:
    """A $ without a name, and names that are not set in the environment."""
    if not Template(text).is_valid():
        yield "a $ is followed by no name; write $NAME or ${NAME}, and $$ for a dollar sign"
        return
    unset = [variable for variable in Template(text).get_identifiers() if variable not in os.environ]
    if unset:
        yield f"${unset[0]} is not set in the environment{_like(unset[0])}; export it before the run"


def _like(name: str) -> str:
    """The variable that may be meant."""
    return nearest(name, [v for v in os.environ if v.isupper()]) if len(name) > 3 else ""


def wrong_address(url: str, example: str) -> Iterator[str]:
    """An address, any part of which may be a variable, that is none of an HTTP server; and one that holds a secret."""
    try:
        parts = urlsplit(Template(url).substitute(os.environ))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except KeyError:  # a variable that is not set
        usable = True
    except ValueError:
        usable = False
    if not usable:
        yield f"expected an address such as {example}"
        return
    parts = urlsplit(url)
    secrets = [parts.password or "", *(value for name, value in parse_qsl(parts.query) if SECRET_FIELD.search(name))]
    if any(secret and "$" not in secret for secret in secrets):
        yield "holds a secret, and a recipe is copied into the run's folder; write $NAME in its place"
