"""Checks of the roles of a recipe: their mapping, names, prompt files, tools and turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, Where, at, close_names, meant
from marl_plugins.core.recipe.prompts import fields_of, read_examples
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.recipe.schema import Recipe, RoleConfig
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.section import Section

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""Of a role or a policy, which names files and folders too."""
JINJA_FIELD = re.compile(r"(?<![\w\\}])\{\{\s*([A-Za-z_]\w*)\s*\}\}")
"""What is a field elsewhere; directly after a word it is LaTeX's, as in \\boxed{{answer}}."""


def _where_mapping(origins: Origins, *key: str) -> Where:
    return (
        at(line=origins.where("mapping", *key), key="mapping")
        if ("mapping",) in origins.lines
        else at(flag="mapping")
    )


def check_roles(
    recipe: Recipe,
    origins: Origins,
    folder: Path,
    tool_names: set[str] | None,
    sections: Mapping[str, type[Section]],
) -> list[Problem]:
    """Returns everything that is wrong with the roles.

    Args:
        tool_names: Names of the tools that there are; None where they are not known.
        sections: The model of each section that the recipe may have.
    """
    return [
        *_mapping(recipe, origins),
        *(
            problem
            for name, config in recipe.roles.items()
            for problem in (
                *_name(name, origins),
                *_prompts(name, config, origins, folder),
                *_tools(name, config, origins, tool_names, sections),
            )
        ),
    ]


def _mapping(recipe: Recipe, origins: Origins) -> Iterator[Problem]:
    if not isinstance(recipe.mapping, dict):
        return
    unmapped = [role for role in recipe.roles if role not in recipe.mapping]
    for role in recipe.mapping:
        if role not in recipe.roles:
            got = f"there is no role {role!r} to be mapped"
            yield Problem(
                "roles.unknown", _where_mapping(origins, role), got, fix=meant(role, recipe.roles)
            )
            unmapped = [
                other for other in unmapped if other not in close_names(role, unmapped)
            ]  # it is only misspelt
    for role in unmapped:
        yield Problem(
            "roles.unmapped", _where_mapping(origins), f"role {role!r} is mapped to no policy"
        )


def _name(name: str, origins: Origins) -> Iterator[Problem]:
    where = at(line=origins.where("roles", name), role=name)
    if not re.fullmatch(NAME, name) or name.startswith("_"):
        got = "cannot be called"
        fix = "letters, digits and underscores only, a letter first, at most 64"
        yield Problem("roles.name", where, got, fix=fix)


def _prompts(role: str, config: RoleConfig, origins: Origins, folder: Path) -> Iterator[Problem]:
    for key in ("prompt", "system", "followup"):
        if (file := getattr(config, key)) is not None:
            yield from (p.within(key=f"roles.{role}.{key}") for p in _prompt(folder / file))
    if config.examples is not None:
        try:
            read_examples(folder / config.examples)
        except ConfigurationError as error:
            line, key = origins.where("roles", role, "examples"), f"roles.{role}.examples"
            yield from (p.within(line=line, key=key) for p in error.problems)


def _prompt(path: Path) -> list[Problem]:
    """Returns what is wrong with the file of a prompt."""
    where = at(file=path)
    try:
        text = read_text(path)
        fields = fields_of([text])
    except ConfigurationError as error:
        return error.problems
    except ValueError as error:
        return [Problem("roles.braces", where, str(error), fix="write {{ and }} for braces")]
    if not text.strip():
        return [
            Problem("roles.empty_prompt", where, "is empty", fix="write what the role is asked")
        ]
    if not fields and (jinja := JINJA_FIELD.search(text)):
        got = f"{jinja[0]} is the text {{{jinja[1]}}}, and there is no field"
        fix = f"a field is {{{jinja[1]}}}"
        return [Problem("roles.jinja", where, got, fix=fix)]
    no_name = [field for field in fields if not field.isidentifier()]
    fix = "a field is a name such as {problem}, and braces are written {{ and }}"
    problems = [
        Problem("roles.field", where, f"{{{field}}} is not a field", fix=fix) for field in no_name
    ]
    try:
        _ = problems or text.format_map(dict.fromkeys(fields, ""))
    except (ValueError, KeyError) as error:  # what follows `:` or `!` in a field
        return [
            Problem(
                "roles.format", where, str(error), fix="a field is a name alone, such as {problem}"
            )
        ]
    return problems


def _tools(
    role: str,
    config: RoleConfig,
    origins: Origins,
    tool_names: set[str] | None,
    sections: Mapping[str, type[Section]],
) -> Iterator[Problem]:
    where = at(key=f"roles.{role}.tools")
    for tool in config.tools if tool_names is not None else ():
        if tool not in (tool_names or ()):
            how = (
                f"it is there where the recipe has its settings: `tools: {{{tool}: "
                f"{model.shown_as()}}}`"
                if (model := sections.get(f"tools.{tool}"))
                else "a plugin's tools are there where the plugin is named (--plugin, or "
                "`plugins:` in the recipe)"
            )
            fix = " ".join(filter(None, (meant(tool, tool_names or ()), how)))
            yield Problem("roles.no_tool", where, f"there is no tool {tool!r}", fix=fix)
