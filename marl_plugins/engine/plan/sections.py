"""The sections of a recipe: which plugin owns which key, and their values.

the recipe's tree -> its plugins -> their sections -> the recipe, and a value of each section
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load, present, users_code
from marl_plugins.core.plugin_names import SHIPPED
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.recipe_yaml import RecipeTree
from marl_plugins.core.recipe.schema import Recipe, Sections, check_recipe
from marl_plugins.core.section import Section
from marl_plugins.engine.manager import Plugins

NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)?")
"""Of a section: a recipe's key, or one below it."""


def load_recipe(tree: RecipeTree, plugins: Plugins) -> tuple[Recipe, Sections]:
    """Returns a recipe and the sections of its plugins.

    Raises:
        ConfigurationError: All problems of the recipe at once, or of the plugins' sections.
    """
    sections = sections_of(plugins)
    return check_recipe(tree, sections, _absent_owners(tree, sections))


def sections_of(plugins: Plugins) -> dict[str, type[Section]]:
    """Returns the model of each section that the plugins own, by the section's name.

    Raises:
        ConfigurationError: Some are no sections, or two plugins own the same key; all of them at
            once.
    """
    models: dict[str, type[Section]] = {}
    owners = dict.fromkeys(Recipe.model_fields, "the recipe itself")
    problems: list[Problem] = []
    for impl in plugins.in_order("marl_sections"):
        plugin = impl.plugin_name
        with users_code(at(hook="marl_sections"), place=at(plugin=plugin)):
            answer = impl.function()
        for name, model in answer.items() if isinstance(answer, Mapping) else [("", answer)]:
            if problem := _wrong_section(name, model) or _taken(name, owners):
                problems.append(problem.within(plugin=plugin, hook="marl_sections"))
            else:
                models[name], owners[name] = model, f"plugin {plugin}"
    if problems:
        raise ConfigurationError(problems)
    return models


def _wrong_section(name: Any, model: Any) -> Problem | None:
    """Returns why an entry of `marl_sections` is no section; None where it is one."""
    if not isinstance(name, str) or not NAME.fullmatch(name):
        expected = "recipe keys with their models, as in {'brevity': Brevity}"
        return Problem("sections.name", got=f"{name or model!r:.80}", expected=expected)
    if not isinstance(model, type) or not issubclass(model, Section):
        expected = "a class derived from marl_plugins.Section"
        return Problem("sections.model", at(key=name), f"{model!r:.80}", expected)
    return None


def _taken(name: str, owners: Mapping[str, str]) -> Problem | None:
    """Returns the problem with a name that is given already, or one around or below it; None where
    there is none."""
    for other, owner in owners.items():
        if other == name or other.startswith(f"{name}.") or name.startswith(f"{other}."):
            got = f"{owner} owns the key {other}"
            return Problem("sections.taken", at(key=name), got, fix="choose another name")
    return None


def _absent_owners(tree: RecipeTree, sections: Mapping[str, type[Section]]) -> dict[str, str]:
    """Returns the shipped plugins that would read keys of a recipe which nothing reads, by the
    key: the plugin's own name."""
    return {
        key: plugin
        for plugin in SHIPPED
        if (key := plugin.rpartition(".")[2]) in tree.values
        and key not in sections
        and present([plugin])
        and hasattr(load(plugin), "marl_sections")
    }
