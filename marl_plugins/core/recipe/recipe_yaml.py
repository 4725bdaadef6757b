"""Reading a recipe's YAML: its values, and the file and line of every key.

`extends: other.yaml` starts from another recipe and changes keys of it; `key: null` takes one of
its keys back.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.texts import read_text


class Origins:
    """The file and line of each key of a recipe, for messages."""

    def __init__(self) -> None:
        self.lines: dict[tuple[str, ...], tuple[Path, int]] = {}

    def where(self, *key: str | int) -> str:
        """Returns `file:line` of a key, or of the closest key around it; empty where the recipe has
        no file."""
        path = tuple(str(k) for k in key)
        while path and path not in self.lines:
            path = path[:-1]
        return "{}:{}".format(*self.lines[path]) if path in self.lines else ""


@dataclass(frozen=True)
class RecipeTree:
    """A recipe's YAML as it was read, with what it extends; nothing of it is checked yet."""

    path: Path
    values: dict[str, Any]
    origins: Origins

    @property
    def plugins(self) -> list[str]:
        """Names of its plugins, as far as they are texts; a file's name is relative to the
        recipe."""
        named = self.values.get("plugins")
        names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        return [str(self.path.parent / name) if name.endswith(".py") else name for name in names]

    @property
    def flags(self) -> dict[str, Any]:
        """Its flags, as far as they have values."""
        named = self.values.get("flags")
        flags = named.items() if isinstance(named, dict) else ()
        return {str(k): v for k, v in flags if v is not None and not isinstance(v, dict)}


RECIPE = "a recipe, which is a mapping of keys, as in `name: mine`"


def read_recipe(path: Path, expected: str = RECIPE) -> RecipeTree:
    """Reads a recipe, or another file of that form, and those that it extends.

    Args:
        expected: What the file is to be, for messages.

    Raises:
        ConfigurationError: A file cannot be read, or is no YAML that a recipe may have.
    """
    origins = Origins()
    return RecipeTree(path, _read(path, origins, [], expected), origins)


YAML_HINTS = {
    "mapping values are not allowed here": "indent keys of one mapping alike, and quote a text "
    "that contains a colon",
    "expected <block end>": "this line is indented differently from those that it belongs to",
    "'\\t' that cannot start any token": "indent with spaces, not tabs",
    "cannot start any token": "quote a text that begins with this character",
    "unexpected end of stream": "a quotation mark is never closed",
    "<stream end>": "a bracket is never closed",
    "2002:merge": "`<<` is not read: write its keys out, or use `extends`",
}
"""What the parser's words mean in a recipe, by a part of them."""


def yaml_hint(problem: str) -> str:
    """Returns what to do about a fault that the parser of YAML has found."""
    return next((hint for part, hint in YAML_HINTS.items() if part in problem), "")


def _read(path: Path, origins: Origins, chain: list[Path], file_form: str) -> dict[str, Any]:
    if path in chain:
        got = f"extends itself: {' -> '.join(str(p) for p in [*chain, path])}"
        raise ConfigurationError(Problem("recipe.extends", at(file=path), got))
    own = _read_one(path, origins, file_form)
    base_name = own.pop("extends", None)
    if base_name is None:
        return own
    mine, where = dict(origins.lines), at(line=origins.where("extends"), key="extends")
    if not isinstance(base_name, str) or Path(base_name).name != base_name:
        expected, fix = "one file in the same folder, with its prompts", "copy the recipe"
        raise ConfigurationError(Problem("recipe.extends", where, str(base_name), expected, fix))
    base_path = path.parent / base_name
    if not base_path.is_file():
        raise ConfigurationError(
            Problem("recipe.extends", where, f"{base_name}: no such file: {base_path}")
        )
    base = _read(base_path, origins, [*chain, path], file_form)
    origins.lines.update(mine)
    merged: dict[str, Any] = _merge(base, own)
    return merged


def _read_one(path: Path, origins: Origins, expected: str) -> dict[str, Any]:
    """Returns the values of one file, without those of the file that it extends."""
    try:
        node = yaml.compose(read_text(path), Loader=yaml.SafeLoader)
        origins.lines[()] = (path, 1)
        if not isinstance(node, yaml.MappingNode):
            kinds = {yaml.SequenceNode: "a list", yaml.ScalarNode: "a single value"}
            got = kinds.get(type(node), "nothing")
            raise ConfigurationError(Problem("recipe.value", at(file=path), got, expected))
        values: dict[str, Any] = build(node, path, (), origins, yaml.SafeLoader(""))
        return values
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        fix = yaml_hint(error.problem or "")
        raise ConfigurationError(
            Problem(
                "recipe.not_yaml", at(line=f"{path}:{line}"), f"not YAML: {error.problem}", fix=fix
            )
        ) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # an anchor within itself
        got = f"not YAML that can be read: {' '.join(str(error).split())}"
        raise ConfigurationError(Problem("recipe.unreadable", at(file=path), got)) from None


def build(
    node: yaml.Node, path: Path, key: tuple[str, ...], origins: Origins, loader: yaml.SafeLoader
) -> Any:
    if isinstance(node, yaml.MappingNode):
        built: dict[str, Any] = {}
        for name_node, value_node in node.value:
            name = str(loader.construct_object(name_node))
            here = (*key, name)
            if name in built:
                where = at(line=f"{path}:{name_node.start_mark.line + 1}")
                raise ConfigurationError(
                    Problem("recipe.repeated_key", where, f"key {name!r} is given twice")
                )
            origins.lines[here] = (path, name_node.start_mark.line + 1)
            built[name] = build(value_node, path, here, origins, loader)
        return built
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            origins.lines[(*key, str(number))] = (path, item.start_mark.line + 1)
        return [
            build(item, path, (*key, str(n)), origins, loader) for n, item in enumerate(node.value)
        ]
    value = loader.construct_object(node)
    # YAML 1.1 reads 1e-6 as a string
    if isinstance(value, str) and isinstance(node, yaml.ScalarNode) and node.style is None:
        with suppress(ValueError):
            if any(c in value for c in "eE") and value[0] in "+-.0123456789":
                return float(value)
    return value


def _merge(base: Any, own: Any) -> Any:
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        merged = {**base, **{k: _merge(base[k], v) if k in base else v for k, v in own.items()}}
        return {
            k: v for k, v in merged.items() if k not in own or own[k] is not None or k not in base
        }
    return own
