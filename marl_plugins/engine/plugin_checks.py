"""Checks of a plugin, as far as its module shows: flags without its name, and hooks that are
misspelt or misused."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from marl_plugins.core import hookspecs
from marl_plugins.core.hookspecs import KINDS, Kind
from marl_plugins.core.problems import Problem, Where, at, meant
from marl_plugins.core.version import __version__


def wraps(options: Any) -> bool:
    """Returns whether a hook implementation (pluggy's, or its marker's options) wraps the
    others."""
    return bool(options["wrapper"] or options["hookwrapper"])


def misnamed(action: argparse.Action, known: Iterable[str]) -> Iterator[Problem]:
    """Returns what is wrong with a flag that a plugin adds.

    Args:
        known: All flags, this one among them.
    """
    if action.required or not action.option_strings:
        name = (*action.option_strings, action.dest)[0]
        fix = "add a flag with a default, and refuse in marl_configure what is missing"
        yield Problem("plugin.required_flag", got=f"adds {name}, which has to be given", fix=fix)
        return
    for flag in action.option_strings:
        where = at(flag=flag.lstrip("-"))
        inside = [
            other for other in known if other.startswith(f"{flag}.") or flag.startswith(f"{other}.")
        ]
        if "." not in flag or flag.startswith("--policy."):
            fix = f"plugins name flags after themselves: --NAME.{flag.lstrip('-')}"
            yield Problem(
                "plugin.flag_name", where, "a plugin cannot add a flag of this name", fix=fix
            )
        elif inside:
            got = f"there is a flag {inside[0]}, and one name cannot begin another"
            yield Problem("plugin.flag_prefix", where, got, fix="rename it")
    try:
        _ = (action.help or "") % vars(action)
    except (ValueError, TypeError, KeyError):
        where = at(flag=action.option_strings[0].lstrip("-"))
        yield Problem(
            "plugin.flag_help", where, "its help cannot be shown", fix="write %% for a percent sign"
        )


def misused_hooks(module: ModuleType) -> list[Problem]:
    """Returns what is wrong with a plugin's hooks, as far as its functions show."""
    if mismatch := _other_version(getattr(module, "MARL_HOOKS", hookspecs.VERSION)):
        return [mismatch]
    if wrong := [*_unknown_arguments(module), *_needlessly_async(module)]:
        return wrong
    problems = [
        problem
        for name, function in vars(module).items()
        for problem in _of_function(name, function)
    ]
    hooks = {name for name, value in vars(module).items() if hasattr(value, "marl_impl")}
    if not hooks and not problems:
        fix = "mark functions with @marl_plugins.hookimpl"
        problems.append(Problem("plugin.no_hook", got="implements no hook", fix=fix))
    may_differ = getattr(module, "may_differ", ())
    if not isinstance(may_differ, list | tuple) or not all(
        isinstance(flag, str) for flag in may_differ
    ):
        expected = 'names of flags, as in may_differ = ("brevity.url",)'
        problems.append(
            Problem("plugin.may_differ", at(name="may_differ"), repr(may_differ), expected)
        )
    if "marl_state" in hooks and "marl_restore" not in hooks:
        got = "without marl_restore what it saves would never come back"
        problems.append(
            Problem("plugin.no_restore", at(hook="marl_state"), got, fix="add marl_restore")
        )
    return problems


def _of_function(name: str, function: Any) -> Iterator[Problem]:
    """Returns what is wrong with one name of a plugin's module, if it is, or is probably meant to
    be, a hook."""
    marked, where = hasattr(function, "marl_impl"), _place(name, function)
    if marked and name not in KINDS:
        yield Problem("hook.unknown", where, f"there is no hook {name!r}", fix=meant(name, KINDS))
    elif marked:
        yield from _misused(where, KINDS[name], function.marl_impl)
        if KINDS[name].name == "chain" and _returns_nothing(function):
            yield Problem(
                "hook.no_return",
                where,
                "returns nothing",
                fix="return what it is given, changed or not",
            )
    elif name.startswith("marl_") and inspect.isfunction(function):
        fix = "mark it with @marl_plugins.hookimpl"
        yield Problem(
            "hook.unmarked", where, "is not marked as a hook and would never be called", fix=fix
        )


def _place(name: str, function: Any) -> Where:
    """Returns where a hook stands in its plugin's file, as far as it is a Python function."""
    code = getattr(inspect.unwrap(function), "__code__", None) if callable(function) else None
    return at(line=f"{code.co_filename}:{code.co_firstlineno}" if code else "", hook=name)


def _returns_nothing(function: Any) -> bool:
    """Returns whether a function comes to its end and never returns a value, as far as its source
    says so."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return False
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    if isinstance(tree.body[0].body[-1], ast.Raise):
        return False
    values = [
        n.value
        for n in ast.walk(tree)
        if isinstance(n, ast.Return | ast.Yield) and n.value is not None
    ]
    return all(isinstance(value, ast.Constant) and value.value is None for value in values)


def _misused(where: Where, kind: Kind, options: Any) -> Iterator[Problem]:
    """Returns what the marker of one implementation says that its hook's kind does not allow."""
    if not wraps(options):
        if kind.name in ("first", "around") and options["trylast"]:
            got = "is marked trylast and would be asked after the built-in, which always answers"
            yield Problem("hook.trylast", where, got, fix="remove trylast")
    elif kind.own:
        yield Problem(
            "hook.wraps_own",
            where,
            "is each plugin's own and cannot be wrapped",
            fix="remove wrapper=True",
        )
    elif kind.name == "chain":
        yield Problem(
            "hook.wraps_chain",
            where,
            "is a chain and cannot be wrapped",
            fix="change the value and return it",
        )


def _other_version(written_for: object) -> Problem | None:
    """Returns why a plugin that was written for a version of the hooks cannot be used with these,
    and the fix."""
    parts, where = str(written_for).split("."), at(name="MARL_HOOKS")
    if len(parts) != 2 or not all(re.fullmatch(r"\d{1,4}", part) for part in parts):
        expected = f'"major.minor", as in MARL_HOOKS = "{hookspecs.VERSION}"'
        return Problem("plugin.version", where, repr(written_for), expected)
    wanted_version, present = (
        tuple(int(part) for part in version) for version in (parts, hookspecs.VERSION.split("."))
    )
    got = (
        f"written for version {written_for} of the hooks, this is openrlhf-marl {__version__} "
        f"with version {hookspecs.VERSION}"
    )
    if wanted_version > present:
        return Problem("plugin.newer", where, got, fix="install a newer openrlhf-marl")
    if wanted_version[0] < present[0]:
        got = f"{got}, where some of them have changed (openrlhf docs compatibility)"
        fix = "install a newer release of the plugin, or an older openrlhf-marl"
        return Problem("plugin.older", where, got, fix=fix)
    return None


def _unknown_arguments(module: ModuleType) -> Iterator[Problem]:
    """Hooks with arguments that they are not given."""
    for name in KINDS:
        function = getattr(module, name, None)
        if inspect.isfunction(function) and hasattr(function, "marl_impl"):
            known = list(inspect.signature(getattr(hookspecs, name)).parameters)
            for argument, parameter in inspect.signature(function).parameters.items():
                if (
                    argument not in known and parameter.default is parameter.empty
                ):  # one with a default is the plugin's own
                    got = f"has no argument {argument!r}"
                    yield Problem(
                        "hook.argument", _place(name, function), got, fix=meant(argument, known)
                    )


def _needlessly_async(module: ModuleType) -> Iterator[Problem]:
    """Hooks written as `async def` that are not awaited."""
    for name, kind in sorted(KINDS.items()):
        if not kind.awaited and inspect.iscoroutinefunction(
            function := getattr(module, name, None)
        ):
            got, fix = (
                "is `async def`, and is not awaited",
                "write `def` (see `openrlhf docs hooks`)",
            )
            yield Problem("hook.async", _place(name, function), got, fix=fix)
