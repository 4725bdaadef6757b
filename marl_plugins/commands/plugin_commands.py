"""The commands that plugins bring (`marl_commands`), found without importing a plugin that brings
none."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from marl_plugins.core.command import Command
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

HOOK = "marl_commands"


def commands_of(plugin: str) -> Sequence[Command]:
    """Returns a found plugin's commands, as its source lists them where it writes them out; it is
    imported when one of them is called.

    Raises:
        ConfigurationError: The plugin has to be imported, and cannot be.
    """
    text = source_of(plugin)
    if text is not None and HOOK not in text:
        return ()
    listed = in_source(text) if text else None
    if listed is None:
        return loaded_commands(plugin)
    return [Command(name, usage, about, _main(plugin, name)) for name, usage, about in listed]


def loaded_commands(plugin: str) -> Sequence[Command]:
    """Imports a plugin, and asks it for its commands.

    Raises:
        ConfigurationError: It cannot be loaded, or answers something else.
    """
    from marl_plugins.core.loading import load, users_code

    module = load(plugin)
    if not hasattr(getattr(module, HOOK, None), "marl_impl"):
        return ()
    with users_code(at(hook=HOOK), place=at(plugin=module.__name__)):
        commands = list(module.marl_commands() or ())
    _check(module, commands)
    return commands


def source_of(plugin: str) -> str | None:
    """Returns the source of a plugin's module; None where there is none to be read."""
    try:
        spec = importlib.util.find_spec(plugin)
        return (
            Path(spec.origin).read_text("utf-8")
            if spec and spec.origin and spec.origin.endswith(".py")
            else None
        )
    # a parent package's own code, of any kind; what is wrong is said where the plugin is imported
    except Exception:
        return None


def in_source(text: str) -> list[tuple[str, str, str]] | None:
    """Returns name, usage and about of the commands that a module returns from `marl_commands`;
    None where they are not written out."""
    try:
        functions = [f for f in ast.parse(text).body if isinstance(f, ast.FunctionDef)]
    except SyntaxError:
        return None
    returned = [f.body[-1] for f in functions if f.name == HOOK]
    match returned:
        case [ast.Return(value=ast.List(elts=calls))]:
            listed = [_written(call) for call in calls]
            return None if None in listed else [words for words in listed if words]
    return None


def _written(call: ast.expr) -> tuple[str, str, str] | None:
    match call:
        case ast.Call(
            func=ast.Name("Command"),
            args=[ast.Constant(str(name)), ast.Constant(str(usage)), ast.Constant(str(about)), *_],
        ):
            return name, usage, about
    return None


def _main(plugin: str, name: str) -> Callable[[Sequence[str]], int]:
    def main(words: Sequence[str]) -> int:
        return next(command for command in loaded_commands(plugin) if command.name == name).main(
            words
        )

    return main


def _check(module: ModuleType, commands: Sequence[object]) -> None:
    if wrong := [c for c in commands if not isinstance(c, Command) or not callable(c.main)]:
        where = at(plugin=module.__file__ or module.__name__, hook=HOOK)
        raise ConfigurationError(
            Problem("plugin.answer", where, f"{wrong[0]!r:.80}", "a Command with a `main`")
        )


def named_plugins(words: Sequence[str]) -> list[str]:
    """Returns the plugins that a command line names with `--plugin`."""
    from marl_plugins.engine.plan.flags import split_flags

    first = next((n for n, word in enumerate(words) if word.startswith("--")), len(words))
    flags = split_flags(words[first:])
    return [flag.words[0] for flag in flags if flag.name == "plugin" and flag.words]
