"""Checks an address or a variable that a recipe gives, as far as it can be known without using
it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from string import Template
from urllib.parse import parse_qsl, urlsplit

from marl_plugins.core.problems import Problem
from marl_plugins.core.redaction import SECRET_FIELD


def wrong_variables(text: str) -> Iterator[Problem]:
    """Yields a $ without a name, and names that are not set in the environment."""
    if not Template(text).is_valid():
        fix = "write $NAME or ${NAME}, and $$ for a dollar sign"
        yield Problem("variable.name", got="a $ is followed by no name", fix=fix)
        return
    unset = [
        variable for variable in Template(text).get_identifiers() if variable not in os.environ
    ]
    if unset:
        got = f"${unset[0]} is not set in the environment"
        yield Problem("variable.unset", got=got, fix="export it before the run")


def wrong_address(url: str, example: str) -> Iterator[Problem]:
    """Yields what is wrong with an address of an HTTP server, any part of which may be a variable;
    also that it holds a secret."""
    try:
        parts = urlsplit(Template(url).substitute(os.environ))
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except KeyError:  # a variable that is not set
        usable = True
    except ValueError:
        usable = False
    if not usable:
        yield Problem("address.form", expected=f"an address such as {example}")
        return
    parts = urlsplit(url)
    secrets = [
        parts.password or "",
        *(value for name, value in parse_qsl(parts.query) if SECRET_FIELD.search(name)),
    ]
    if any(secret and "$" not in secret for secret in secrets):
        got = "holds a secret, and a recipe is copied into the run's folder"
        yield Problem("address.secret", got=got, fix="write $NAME in its place")
