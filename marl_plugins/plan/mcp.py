"""What is wrong with a recipe's MCP servers, as far as it can be known without starting one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from string import Template

from marl_plugins.core.recipe import MCPServerConfig, Origins, Recipe
from marl_plugins.core.redaction import SECRET_FIELD
from marl_plugins.plan.addresses import wrong_address, wrong_variables

NAME = re.compile(r"[a-z][a-z0-9_]*")


def check_mcp(recipe: Recipe, origins: Origins, folder: Path) -> list[str]:
    """What is wrong with `tools: mcp:`; what the servers offer shows when a run starts."""
    problems = []
    for name, config in recipe.tools.mcp.items():
        place = f"{origins.where('tools', 'mcp', name)}: tools.mcp.{name}"
        problems += [f"{place}{problem}" for problem in _problems(name, config, folder)]
        if find_spec("mcp") is None:
            problems.append(f"{place}: the MCP client is not installed; pip install 'openrlhf-marl[mcp]'")
    return problems


def _problems(name: str, config: MCPServerConfig, folder: Path) -> Iterator[str]:
    """What is wrong with one server; each begins with the rest of its key."""
    if not NAME.fullmatch(name):
        yield ": a server's name is a tool's: lower-case letters, digits and underscores, a letter first"
    if name == "python":
        yield ": there is a tool of that name; rename the server"
    if bool(config.command) == bool(config.url):
        yield ": expected one of `command` (a program to start) and `url` (of a server that runs)"
    elif config.command and not config.command[0].strip():
        yield ".command: its first word is empty; expected a program"
    elif config.command and config.program(folder) is None:
        where = f"in {folder}" if os.sep in config.command[0] else "beside the run's Python or in PATH"
        yield f".command: there is no program {config.command[0]!r} {where}; install it, or correct the name"
    if config.headers and not config.url:
        yield ".headers: are sent to a `url`; a program has `env`"
    if config.env and not config.command:
        yield ".env: is a program's (`command`); what runs already gets `headers`"
    yield from _secrets(config)
    if config.url:
        yield from (f".url: {problem}" for problem in wrong_address(config.url, "http://127.0.0.1:8000/mcp"))


def _secrets(config: MCPServerConfig) -> Iterator[str]:
    """Variables that are not set, and secrets that are written out: the recipe is copied into the run's folder."""
    for key, values in (("env", config.env), ("headers", config.headers), ("", {"url": config.url})):
        for name, value in values.items():
            place = f".{key}.{name}" if key else f".{name}"
            yield from (f"{place}: {problem}" for problem in wrong_variables(value))
            if value and Template(value).is_valid() and not Template(value).get_identifiers() and SECRET_FIELD.search(name):
                yield (
                    f"{place}: a secret must not stand in a recipe, which is copied into the run's folder; write $NAME, and set "
                    "that variable in the environment"
                )
