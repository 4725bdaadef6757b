"""`openrlhf plugins`: the plugins that are found, and what they hook into."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from marl_plugins import __version__
from marl_plugins.commands.plugin_commands import source_of
from marl_plugins.core.command import Parser
from marl_plugins.core.hookspecs import KINDS
from marl_plugins.core.plugin_names import BUILTINS, SHIPPED, found

HOOK = re.compile(r"^@hookimpl\b.*\n(?:@.*\n)*(?:async )?def (marl_[a-z_]+)\(", re.MULTILINE)


def hooks_of(module: ModuleType) -> Iterator[str]:
    """Returns the hooks that a module implements."""
    return (name for name in KINDS if hasattr(getattr(module, name, None), "marl_impl"))


def main(words: Sequence[str]) -> int:
    parser = Parser(
        prog="openrlhf plugins",
        description="Plugins that are found, and what they hook into; name one with --plugin NAME.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="look at this one too: a name or a .py file",
    )
    options = parser.parse_args(words)
    if options.plugin:
        from marl_plugins.engine.manager import Plugins

        Plugins(
            options.plugin
        )  # what is wrong with a plugin of one's own is said as a run would say it
    plugins = [_look(name) for name in dict.fromkeys([*found(), *options.plugin])]
    if options.json:
        print(json.dumps(plugins, indent=2))
        return 0
    from marl_plugins.commands.tables import print_table

    rows = [
        [
            p["name"],
            p["version"],
            "built in" if p["built_in"] else "",
            ", ".join(p["hooks"]),
            p["about"],
        ]
        for p in plugins
    ]
    print_table(
        "Plugins found; name one with --plugin NAME",
        ["name", "version", "", "hooks", "about"],
        rows,
    )
    return 0


def _look(name: str) -> dict[str, Any]:
    """Returns what a plugin is. This package's own are read, not imported, which would take half a
    second."""
    if name in (*SHIPPED, *BUILTINS) and (text := source_of(name)):
        about, _, _ = text.removeprefix('"""').partition('"""')
        written = set(HOOK.findall(text))
        return _described(name, __version__, [hook for hook in KINDS if hook in written], about)
    from marl_plugins.core.failures import ConfigurationError
    from marl_plugins.core.loading import load, version_of

    try:
        module = load(name)
    except ConfigurationError as error:
        return _described(name, "?", [], f"cannot be loaded: {error}")
    return _described(name, version_of(name), list(hooks_of(module)), module.__doc__ or "")


def _described(name: str, version: str, hooks: list[str], docstring: str) -> dict[str, Any]:
    """Returns a plugin's values; about it, the first sentence of its docstring."""
    paragraph = " ".join(docstring.strip().partition("\n\n")[0].split())
    about = re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]
    return {
        "name": name,
        "version": version,
        "built_in": name in BUILTINS,
        "hooks": hooks,
        "about": about,
    }
