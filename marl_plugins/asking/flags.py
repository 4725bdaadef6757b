"""Flags of whoever asks an endpoint, under a prefix of its own, and what can be wrong with them."""

from __future__ import annotations

import argparse
import json
import os
from types import SimpleNamespace
from urllib.parse import urlsplit

from marl_plugins.core.options import above, at_least, recipe_file
from marl_plugins.core.problems import Problem, Where
from marl_plugins.core.redaction import shown_url


def request_fields(word: str) -> str:
    """Parses `body`: JSON, checked and kept as text (nested flags cannot hold a mapping); it
    may hold secrets."""
    try:
        is_object = isinstance(json.loads(word), dict)
    except (ValueError, RecursionError):
        is_object = False
    if not is_object:
        raise argparse.ArgumentTypeError("expected a JSON object of request fields")
    return word


def add_endpoint_flags(group: argparse._ArgumentGroup, prefix: str, kept: str) -> None:
    """Adds the limits of what is asked, its price and its budget.

    Args:
        prefix: Of the flags: `coach` for `--coach.timeout`.
        kept: What the cache holds.
    """
    add = group.add_argument
    add(
        f"--{prefix}.body",
        type=request_fields,
        metavar="JSON",
        help="fields for every request; null takes one out: '{\"temperature\": null}'",
    )
    add(
        f"--{prefix}.timeout",
        type=above(0),
        default=60.0,
        metavar="SECONDS",
        help="for one request",
    )
    add(
        f"--{prefix}.retries",
        type=at_least(0),
        default=6,
        help="repeats of a request that failed in a way that may pass (429, 5xx, ...)",
    )
    add(
        f"--{prefix}.concurrency",
        type=at_least(1),
        default=32,
        help="requests in flight, in the whole run",
    )
    add(
        f"--{prefix}.per_minute",
        type=above(0),
        metavar="N",
        help="requests begun per minute, in the whole run",
    )
    add(
        f"--{prefix}.price_in",
        type=at_least(0, float),
        default=0.0,
        metavar="USD",
        help="of a million tokens of prompts",
    )
    add(
        f"--{prefix}.price_out",
        type=at_least(0, float),
        default=0.0,
        metavar="USD",
        help="of a million tokens of answers",
    )
    add(
        f"--{prefix}.budget",
        type=above(0),
        metavar="USD",
        help="what the run may spend; past it the run is saved and ends",
    )
    add(
        f"--{prefix}.budget_tokens",
        type=at_least(1),
        metavar="N",
        help="the same in tokens, of prompts and answers together",
    )
    add(
        f"--{prefix}.cache",
        type=recipe_file,
        metavar="FILE",
        help=f"{kept} of earlier runs, added to; the same question is never paid twice",
    )


def price_problems(prefix: str, args: SimpleNamespace) -> list[Problem]:
    """Returns that a budget in dollars (`args.budget`) has no price to count by."""
    if args.budget is None or args.price_in or args.price_out:
        return []
    flags = tuple(f"{prefix}.{name}" for name in ("budget", "price_in", "price_out"))
    got = f"--{prefix}.budget counts dollars and needs --{prefix}.price_in and "
    got += f"--{prefix}.price_out, or use --{prefix}.budget_tokens"
    flags += (f"{prefix}.budget_tokens",)
    return [Problem("endpoint.no_price", got=got, flags=flags)]


def address_problems(url: str, where: Where) -> list[Problem]:
    """Returns what is wrong with an endpoint's address; none of it is repeated that may be a
    password."""
    try:
        place = urlsplit(url)
        if (
            place.scheme in ("http", "https")
            and place.hostname
            and (place.port is None or place.port > 0)
        ):
            return []
    # a port that is no number: a / or # in a password ends the address before it
    except ValueError:
        pass
    return [
        Problem(
            "endpoint.address",
            where,
            f"{shown_url(url)}: expected http://HOST:PORT/v1 or https://...",
            fix="in a password / is written %2F, @ %40, : %3A and # %23",
        )
    ]


def key_problems(variable: str, named: str) -> list[Problem]:
    if variable and not variable.isidentifier():
        got = f"{named} is no name of an environment variable"
        fix = "name the variable that holds the key, not the key"
        return [Problem("endpoint.key_name", got=got, fix=fix)]
    key = os.environ.get(variable, "").strip()
    if key.isascii() and key.isprintable():
        return []
    return [
        Problem(
            "endpoint.key_text",
            got=f"${variable} ({named}) holds characters that no HTTP header can carry",
            fix="is it a key?",
        )
    ]
