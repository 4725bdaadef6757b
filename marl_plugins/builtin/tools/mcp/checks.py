"""Checks of a recipe's MCP servers, as far as is possible without starting one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from string import Template

from marl_plugins.builtin.tools.mcp.section import MCPServerConfig
from marl_plugins.core.findings import missing_extra
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.addresses import wrong_address, wrong_variables
from marl_plugins.core.redaction import SECRET_FIELD

NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_mcp(servers: Mapping[str, MCPServerConfig], folder: Path) -> list[Problem]:
    """Returns what is wrong with `tools: mcp:`; what the servers offer shows when a run starts.

    Args:
        folder: The recipe's.
    """
    problems = missing_extra("mcp", "mcp", at(key="tools.mcp"))
    for name, server in servers.items():
        problems += _problems(name, server, folder)
    return problems


def _problems(name: str, config: MCPServerConfig, folder: Path) -> Iterator[Problem]:
    """Yields what is wrong with one server."""
    key = f"tools.mcp.{name}"
    where = at(key=key)
    if not NAME.fullmatch(name):
        expected = "a tool's name: lower-case letters, digits and underscores, a letter first"
        yield Problem("mcp.name", where, repr(name), expected)
    if bool(config.command) == bool(config.url):
        expected = "one of `command` (a program to start) and `url` (of a server that runs)"
        yield Problem("mcp.kind", where, expected=expected)
    elif config.command and config.program(folder) is None:
        got = f"there is no program {config.command[0]!r}"
        looked = f"it is looked for in {folder}, beside the run's Python and in PATH"
        yield Problem("mcp.program", at(key=f"{key}.command"), got, fix=looked)
    part, given = ("headers", config.headers) if config.command else ("env", config.env)
    if given:
        fix = "a program is given `env`, and a `url` is sent `headers`"
        yield Problem("mcp.kind", at(key=f"{key}.{part}"), "is not read", fix=fix)
    yield from _secrets(key, config)
    if config.url:
        wrong = wrong_address(config.url, "http://127.0.0.1:8000/mcp")
        yield from (problem.within(key=f"{key}.url") for problem in wrong)


def _secrets(key: str, config: MCPServerConfig) -> Iterator[Problem]:
    """Yields variables that are not set, and secrets that are written out: the recipe is copied
    into the run's folder."""
    for part, values in (
        ("env", config.env),
        ("headers", config.headers),
        ("", {"url": config.url}),
    ):
        for name, value in values.items():
            place = ".".join(filter(None, (key, part, name)))
            yield from (problem.within(key=place) for problem in wrong_variables(value))
            if value and SECRET_FIELD.search(name) and not Template(value).get_identifiers():
                got = "a secret must not stand in a recipe, which is copied into the run's folder"
                fix = "write $NAME, and set that variable in the environment"
                yield Problem("mcp.secret", at(key=place), got, fix=fix)
