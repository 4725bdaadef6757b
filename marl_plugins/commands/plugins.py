"""`openrlhf plugins`: the plugins that are found, and what they hook into."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import metadata
from types import ModuleType
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.hookspecs import KINDS
from marl_plugins.hosts.upstream_cli import Parser
from marl_plugins.loading import GROUP, SHIPPED, load, present, version_of
from marl_plugins.manager import BUILTINS, Plugins


def found() -> list[str]:
    """Names of the plugins that are found: shipped ones, built-in ones and entry points."""
    return list(dict.fromkeys([*present((*SHIPPED, *BUILTINS)), *(e.value for e in metadata.entry_points(group=GROUP))]))


def hooks_of(module: ModuleType) -> Iterator[str]:
    """The hooks that a module implements."""
    return (name for name in KINDS if hasattr(getattr(module, name, None), "marl_impl"))


def main(words: Sequence[str]) -> int:
    parser = Parser(
        prog="openrlhf plugins", description="Plugins that are found, and what they hook into; name one with --plugin NAME."
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plugin", metavar="NAME", action="append", default=[], help="look at this one too: a name or a .py file"
    )
    options = parser.parse_args(list(words))
    Plugins(options.plugin)  # what is wrong with a plugin of one's own is said as a run would say it
    plugins = [_look(name) for name in dict.fromkeys([*found(), *options.plugin])]
    if options.json:
        print(json.dumps(plugins, indent=2))
        return 0
    from marl_plugins.commands.tables import print_table

    rows = [
        [p["name"], p["version"], "built in" if p["built_in"] else "", ", ".join(p["hooks"]), p["about"]] for p in plugins
    ]
    print_table("Plugins found; name one with --plugin NAME", ["name", "version", "", "hooks", "about"], rows)
    return 0


def _look(name: str) -> dict[str, Any]:
    try:
        module = load(name)
    except ConfigurationError as error:
        return {"name": name, "version": "?", "built_in": False, "hooks": [], "about": f"cannot be loaded: {error}"}
    about = (module.__doc__ or "").strip().splitlines()
    return {
        "name": name,
        "version": version_of(name),
        "built_in": name in BUILTINS,
        "hooks": list(hooks_of(module)),
        "about": about[0] if about else "",
    }
