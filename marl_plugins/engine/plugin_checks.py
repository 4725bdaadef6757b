"""Checks of a plugin, as far as its module shows: flags without its name, and hooks that are
misspelt or misused."""

from __future__ import annotations

import argparse
import inspect
import re
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from marl_plugins.core import hookspecs
from marl_plugins.core.failures import place_of
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


def misused_hooks(module: ModuleType) -> list[Problem]:
    """Returns what is wrong with a plugin's hooks, as far as its functions show."""
    if mismatch := _other_version(getattr(module, "MARL_HOOKS", hookspecs.VERSION)):
        return [mismatch]
    problems = [*_needlessly_async(module)]
    for name, function in vars(module).items():
        problems += _of_function(name, function)
    hooks = {name for name, value in vars(module).items() if hasattr(value, "marl_impl")}
    if not hooks and not problems:
        fix = "mark functions with @marl_plugins.hookimpl"
        problems.append(Problem("plugin.no_hook", got="implements no hook", fix=fix))
    if "marl_state" in hooks and "marl_restore" not in hooks:
        got = "without marl_restore what it saves would never come back"
        problems.append(
            Problem("plugin.no_restore", at(hook="marl_state"), got, fix="add marl_restore")
        )
    return problems


def _of_function(name: str, function: Any) -> Iterator[Problem]:
    """Returns what is wrong with one name of a plugin's module, if it is, or is probably meant to
    be, a hook."""
    marked, where = hasattr(function, "marl_impl"), at(line=place_of(function), hook=name)
    if marked and name not in KINDS:
        yield Problem("hook.unknown", where, f"there is no hook {name!r}", fix=meant(name, KINDS))
    elif marked:
        yield from _misused(where, KINDS[name], function.marl_impl)
    elif name.startswith("marl_") and inspect.isfunction(function):
        fix = "mark it with @marl_plugins.hookimpl"
        yield Problem(
            "hook.unmarked", where, "is not marked as a hook and would never be called", fix=fix
        )


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
            where = at(line=place_of(function), hook=name)
            yield Problem("hook.async", where, got, fix=fix)
