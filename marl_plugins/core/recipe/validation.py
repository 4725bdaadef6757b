"""Puts what is wrong with the values of a recipe into words: its place, what was got, what was
expected, and the nearest valid name."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, TypeGuard, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic

from marl_plugins.core.problems import Problem, Where, at, meant
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.section import Model

M = TypeVar("M", bound=Model)
Key = tuple[str, ...]


def validated(
    model: type[M], value: Any, key: Key, origins: Origins, problems: list[Problem]
) -> M | None:
    """Returns a part of a recipe as its model has it, or None with all that is wrong with it among
    the problems.

    Args:
        key: Where the part stands in the recipe; empty: the recipe itself.
    """
    try:
        return model.model_validate(value)
    except pydantic.ValidationError as error:
        wrong = [
            e
            for e in error.errors()
            if e["type"] != "literal_error" or not isinstance(e["input"], dict)
        ]
        problems += dict.fromkeys(_explain(e, model, key, origins) for e in wrong)
        return None


def unknown_key(
    key: Sequence[str], known: Iterable[str], origins: Origins, owner: str = ""
) -> Problem:
    """Returns the problem with a key that nothing reads.

    Args:
        known: The valid names in its place.
        owner: A shipped plugin that the run does not have, and that would read it.
    """
    names = sorted(known)
    fix = meant(key[-1], names) or (f"valid: {', '.join(names)}" if names else "")
    if owner:
        fix = f"plugin {owner} reads it: add that to `plugins:`, or remove the key"
    return Problem("recipe.unknown_key", key_place(key, origins), "unknown key", fix=fix)


def not_a_mapping(key: Sequence[str], example: str, value: Any, origins: Origins) -> Problem:
    """Returns the problem with a key whose value is to be a mapping."""
    return Problem(
        "recipe.value", key_place(key, origins), repr(value), f"a mapping such as {example}"
    )


def key_place(key: Sequence[str], origins: Origins) -> Where:
    """Returns the place of a recipe's key."""
    return at(line=origins.where(*key), key=".".join(key))


def _explain(error: Any, model: type[Model], prefix: Key, origins: Origins) -> Problem:
    below = [str(p) for p in error["loc"]]
    if below[:1] == ["mapping"]:  # else the alternatives of its type stand between
        below = [p for p in below if not p.startswith(("literal[", "dict[", "function-plain["))]
    location = [*prefix, *below]
    where, value = key_place(location, origins), error["input"]
    if location == ["mapping"] and not isinstance(value, dict):
        fix = meant(value, ["separate", "shared"]) if isinstance(value, str) else ""
        return Problem(
            "recipe.value",
            where,
            repr(value),
            "separate, shared, or one `role: policy` per role",
            fix,
        )
    if _is_secret(model, below):
        is_field = _field(model, below) is not None
        expected = f"a mapping such as {_example(model, below)}" if is_field else "a text in quotes"
        return Problem("recipe.value", where, expected=expected)
    if error["type"] == "extra_forbidden":
        around = _annotation(model, below[:-1])
        return unknown_key(location, _fields(around) if _is_model(around) else (), origins)
    if error["type"] == "missing":
        return Problem("recipe.missing_key", where, "this key is missing")
    if error["type"] in ("dict_type", "model_type"):
        return not_a_mapping(location, _example(model, below), value, origins)
    if error["type"] == "flag_value":
        return _flag_problem(where, location[-1], value)
    if value is None:
        return Problem("recipe.no_value", where, "has no value", fix="give one, or remove the key")
    return Problem("recipe.value", where, f"{error['msg']}, got {value!r}")


def _flag_problem(where: Where, name: str, value: Any) -> Problem:
    if value is None:
        fix = (
            "true is a switch that is on, and null only takes back a flag of the recipe that "
            "this one extends"
        )
        return Problem("recipe.no_value", where, "has no value", fix=fix)
    flat = ", ".join(_flat_names(name, value)) or f"{name}.NAME: VALUE"
    return Problem("recipe.nested_flags", where, f"flags are written flat: {flat}")


def _flat_names(name: str, value: Any) -> list[str]:
    """Returns the names of the flags that a nested mapping means."""
    return (
        [n for k, v in value.items() for n in _flat_names(f"{name}.{k}", v)]
        if isinstance(value, Mapping)
        else [name]
    )


def _example(model: type[Model], below: Sequence[str]) -> str:
    """Returns what a mapping at a place below a model looks like."""
    field = _field(model, below)
    if field is not None and field.examples:
        return str(field.examples[0])
    annotation = _annotation(model, below)
    return annotation.shown_as() if _is_model(annotation) else "{NAME: ...}"


def _is_secret(model: type[Model], below: Sequence[str]) -> bool:
    """Returns whether a place below a model lies in a field that may hold a secret."""
    fields = (_field(model, below[: n + 1]) for n in range(len(below)))
    return any(field is not None and not field.repr for field in fields)


def _field(model: type[Model], below: Sequence[str]) -> pydantic.fields.FieldInfo | None:
    """Returns the field of a model that a place is; None where it is an entry of a mapping or a
    list."""
    around = _annotation(model, below[:-1]) if below else None
    return _fields(around).get(below[-1]) if _is_model(around) else None


def _fields(model: type[Model]) -> dict[str, pydantic.fields.FieldInfo]:
    """Returns the fields of a model by their keys, which are not their names where these are words
    of Python."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def _annotation(annotation: Any, below: Sequence[str]) -> Any:
    """Returns the type of what stands at a place below a type; None where it is not known."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if get_origin(annotation) in (Union, types.UnionType):
        return next(
            (
                inner
                for a in get_args(annotation)
                if (inner := _annotation(a, below)) not in (None, type(None))
            ),
            None,
        )
    if not below:
        return annotation
    step, rest = below[0], below[1:]
    if _is_model(annotation):
        field = _fields(annotation).get(step)
        # the type of entries, dict[str, ...]
        of_any_name = get_type_hints(annotation).get("__pydantic_extra__")
        return _annotation(field.annotation, rest) if field else _annotation(of_any_name, below)
    if get_origin(annotation) in (dict, list):
        return _annotation(get_args(annotation)[-1], rest)
    return None


def _is_model(annotation: Any) -> TypeGuard[type[Model]]:
    return isinstance(annotation, type) and issubclass(annotation, Model)
