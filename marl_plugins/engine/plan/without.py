"""Takes plugins out of a recipe (`--without`), with the keys and flags that only they read."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.recipe_yaml import RecipeTree
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.sections import sections_of


def without(tree: RecipeTree, names: Sequence[str]) -> RecipeTree:
    """Returns a recipe as if it had never named some of its plugins.

    Args:
        names: As the recipe writes them.

    Raises:
        ConfigurationError: The recipe does not name one of them, or a plugin that stays needs it.
    """
    if not names:
        return tree
    named = tree.values.get("plugins")
    written = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
    got = "the recipe does not name this plugin"
    problems = [
        Problem("plugin.not_named", at(flag="without", name=name), got, fix=meant(name, written))
        for name in dict.fromkeys(names)
        if name not in written
    ]
    if problems:
        raise ConfigurationError(problems)
    kept = replace(
        tree, values=tree.values | {"plugins": [name for name in written if name not in names]}
    )
    before, after = Plugins(tree.plugins), Plugins(kept_plugins(tree, names))
    if needed := [
        name for name in tree.plugins if name not in kept.plugins and name in after.names
    ]:
        got = "another plugin of the recipe requires it"
        raise ConfigurationError(
            Problem("plugin.needed", at(flag="without", name=name), got) for name in needed
        )
    lost = sections_of(before).keys() - sections_of(after).keys()
    values = {key: _less(key, value, lost) for key, value in kept.values.items() if key not in lost}
    if isinstance(flags := values.get("flags"), Mapping):
        unread = _flags(before) - _flags(after)
        values["flags"] = {flag: value for flag, value in flags.items() if flag not in unread}
    return replace(kept, values=values)


def kept_plugins(tree: RecipeTree, names: Collection[str]) -> list[str]:
    """Returns the plugins of a recipe that stay, as `RecipeTree.plugins` has them."""
    gone = {str(tree.path.parent / name) if name.endswith(".py") else name for name in names}
    return [name for name in tree.plugins if name not in gone]


def _less(key: str, value: Any, lost: set[str]) -> Any:
    """A key's value without the sections below it that nobody reads any more."""
    below = {section.partition(".")[2] for section in lost if section.startswith(f"{key}.")}
    return (
        {name: v for name, v in value.items() if name not in below}
        if below and isinstance(value, Mapping)
        else value
    )


def _flags(plugins: Plugins) -> set[str]:
    parser = UpstreamParser(add_help=False, allow_abbrev=False)
    plugins.options(parser)
    return {
        option.removeprefix("--") for action in parser._actions for option in action.option_strings
    }
