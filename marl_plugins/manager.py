"""Finding, checking and calling plugins.

Found is not active: only what was named takes part, and what a named plugin's `requires` lists, in that order. A plugin is
named by dotted module name, by entry-point name (group `marl_plugins`), or by the path of a `.py` file.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pluggy

from marl_plugins import __version__, hookspecs
from marl_plugins.core.failures import ConfigurationError, RunEnded, nearest

GROUP = "marl_plugins"
BUILTINS = (
    "marl_plugins.builtin.recipe",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
    "marl_plugins.builtin.upstream",
)
"""Always active and asked last: what a run does where no named plugin answers."""
SHIPPED = (
    "marl_plugins.coach",
    "marl_plugins.reward_backprop",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
    "marl_plugins.filter_agents_data",
)
"""The capabilities in this package that a user names."""
CHAINS = ("marl_credit", "marl_select")
AWAITED = tuple(
    n for n, spec in vars(hookspecs).items() if "Awaitable" in str(getattr(spec, "__annotations__", {}).get("return"))
)
OF_FILES = ("marl_plugin_", "marl_recipe_")
"""What the modules of `.py` files are called."""
OWN = ("marl_options", "marl_state", "marl_restore")
"""Hooks that are each plugin's own; they cannot be wrapped."""
FIRST = tuple(
    name for name, spec in vars(hookspecs).items() if getattr(spec, "marl_spec", {}) and spec.marl_spec["firstresult"]
)


class Plugins:
    """The active plugins of a run.

    Args:
        names: As the user gave them, in order; repeated names count once.

    Raises:
        ConfigurationError: Plugins that cannot be found or imported, misspelt or misused hooks, two plugins that claim the
            same first-result hook; all of them at once.
    """

    def __init__(self, names: Sequence[str]):
        self.manager = pluggy.PluginManager("marl")
        self.manager.add_hookspecs(hookspecs)
        problems: list[str] = []
        named = self._with_requirements(names, problems)
        for name in BUILTINS:
            self.manager.register(importlib.import_module(name), name)
        self.names = [name for name in named if name not in BUILTINS]
        for name in reversed(self.names):  # pluggy asks the last registered first
            self._register(name, named[name], problems)
        problems += self._clashes()
        if problems:
            raise ConfigurationError(problems)

    def _with_requirements(self, names: Sequence[str], problems: list[str]) -> dict[str, ModuleType]:
        """Modules by name: each named plugin, preceded by what it requires."""
        found: dict[str, ModuleType] = {}

        visiting: set[str] = set()

        def add(name: str, wanted_by: str | None) -> None:
            if name in visiting:
                return
            visiting.add(name)
            try:
                module = load(name)
            except ConfigurationError as error:
                because = f" (required by {wanted_by})" if wanted_by else ""
                problems.extend(p + because for p in error.problems)
                return
            canonical = module.__name__ if not name.endswith(".py") else str(Path(name).resolve())
            if canonical in found:
                return
            for requirement in getattr(module, "requires", ()):
                add(requirement, name)
            found[canonical] = module

        for name in names:
            add(name, None)
        return found

    def _register(self, name: str, module: ModuleType, problems: list[str]) -> None:
        if mismatch := _other_hooks(getattr(module, "MARL_HOOKS", hookspecs.VERSION)):
            problems.append(f"plugin {name}: {mismatch}")
            return
        known = [n for n in vars(hookspecs) if n.startswith("marl_")]
        if wrong := [*_unknown_arguments(module), *_out_of_time(module)]:
            problems.extend(f"plugin {name}: {problem}" for problem in wrong)
            return
        try:
            self.manager.register(module, name)
        except pluggy.PluginValidationError as error:
            problems.append(f"plugin {name}: {' '.join(str(error).split())}")
            return
        for hook in AWAITED:
            for impl in getattr(self.manager.hook, hook).get_hookimpls():
                if impl.plugin_name == name and not impl.wrapper and not impl.hookwrapper:
                    impl.function = _awaitable(impl.function)
        for attribute, value in vars(module).items():
            marked = hasattr(value, "marl_impl")
            wraps = marked and (value.marl_impl["wrapper"] or value.marl_impl["hookwrapper"])
            if marked and not wraps and attribute in FIRST and value.marl_impl["trylast"]:
                problems.append(
                    f"plugin {name}: {attribute} is marked trylast and would be asked after the built-in, which always answers; "
                    "take trylast out"
                )
            if wraps and attribute in OWN:
                problems.append(f"plugin {name}: {attribute} is each plugin's own and cannot be wrapped")
            if wraps and attribute in CHAINS:
                problems.append(
                    f"plugin {name}: {attribute} is a chain and cannot be wrapped; change the value and return it"
                )
            if marked and attribute not in known:
                problems.append(f"plugin {name}: there is no hook {attribute!r}{nearest(attribute, known)}")
            elif attribute.startswith("marl_") and inspect.isfunction(value) and not marked:
                problems.append(
                    f"plugin {name}: {attribute} is not marked with @marl_plugins.hookimpl and would never be called"
                )
        if not any(hasattr(value, "marl_impl") for value in vars(module).values()):
            problems.append(f"plugin {name}: implements no hook (functions marked with @marl_plugins.hookimpl)")

    def _clashes(self) -> list[str]:
        problems = []
        for hook in FIRST:
            claims = [
                impl.plugin_name
                for impl in getattr(self.manager.hook, hook).get_hookimpls()
                if impl.plugin_name not in BUILTINS and not impl.wrapper and not impl.hookwrapper
            ]
            if len(claims) > 1:
                problems.append(
                    f"plugins {' and '.join(sorted(claims))} both answer {hook}, which takes one answer; name only one of them"
                )
        return problems

    @property
    def hook(self) -> Any:
        """pluggy's callers, for hooks of kind *each*, *first* and *around*."""
        return self.manager.hook

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Let every plugin add its flags.

        Raises:
            ConfigurationError: A flag exists already, or does not carry a name that says whose it is.
        """
        problems = []
        for impl in reversed(self.manager.hook.marl_options.get_hookimpls()):
            before = set(parser._option_string_actions)
            try:
                impl.function(parser=parser)
            except argparse.ArgumentError as error:
                problems.append(
                    f"plugin {impl.plugin_name}: adds a flag that exists already: {error}; plugins name flags after themselves"
                )
            except Exception as error:  # the plugin's own code, of any kind
                problems.append(self._in_users_code("marl_options", error))
            added = sorted(set(parser._option_string_actions) - before)
            problems += [
                f"plugin {impl.plugin_name}: adds the flag {flag}; plugins name flags after themselves: --NAME.{flag.lstrip('-')}"
                for flag in added
                if "." not in flag
            ]
        if problems:
            raise ConfigurationError(problems)

    def planned(self, hook: str, **arguments: Any) -> Any:
        """The answers to a hook that is called before anything starts.

        Raises:
            ConfigurationError: A plugin's or a recipe's own code fails, with its file and line.
        """
        try:
            return getattr(self.hook, hook)(**arguments)
        except (ConfigurationError, RunEnded):
            raise
        except Exception as error:  # the user's own code, of any kind
            raise ConfigurationError(self._in_users_code(hook, error)) from error

    def _in_users_code(self, hook: str, error: Exception) -> str:
        """Where a user's code failed; a failure of this package's is raised as it is."""
        theirs = {name.partition(".")[0] for name in self.names if not name.endswith(".py")} - {__name__.partition(".")[0]}
        for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
            module = frame.f_globals.get("__name__", "")
            if module.startswith(OF_FILES) or module.partition(".")[0] in theirs:
                return f"{frame.f_code.co_filename}:{line}: {hook}: {type(error).__name__}: {error}"
        raise error

    async def chain(self, hook: str, value: Any, **arguments: Any) -> Any:
        """Pass `value` (the hook's first argument) through the implementations, built-ins first, then in the order given."""
        first = next(iter(inspect.signature(getattr(hookspecs, hook)).parameters))
        for impl in sorted(
            getattr(self.manager.hook, hook).get_hookimpls(),
            key=lambda i: self.names.index(i.plugin_name) if i.plugin_name in self.names else -1,
        ):
            given = {first: value, **arguments}
            result = impl.function(**{name: given[name] for name in impl.argnames})
            if inspect.isawaitable(result):
                result = await result
            if result is None:
                raise ConfigurationError(
                    f"plugin {impl.plugin_name}: {hook} returned nothing; it has to return the {first}"
                )
            value = result
        return value

    def implements(self, name: str, hook: str) -> bool:
        """Whether a plugin implements a hook."""
        return any(i.plugin_name == name for i in getattr(self.manager.hook, hook).get_hookimpls())

    def claims(self, hook: str) -> bool:
        """Whether a named plugin (not a built-in) implements the hook."""
        return any(i.plugin_name in self.names for i in getattr(self.manager.hook, hook).get_hookimpls())

    def state(self) -> dict[str, Any]:
        """What every plugin wants kept, by plugin name."""
        states = {}
        for impl in self.manager.hook.marl_state.get_hookimpls():
            states[impl.plugin_name] = impl.function()
        return states

    def restore(self, states: dict[str, Any]) -> None:
        """Give each plugin its state back."""
        for impl in self.manager.hook.marl_restore.get_hookimpls():
            if impl.plugin_name in states:
                impl.function(states[impl.plugin_name])

    def versions(self) -> dict[str, str]:
        """Name to version of the active plugins, for the run's manifest: a file's is its content's digest."""
        return {name: version_of(name) for name in self.names}


def _other_hooks(written_for: object) -> str | None:
    """Why a plugin that was written for a version of the hooks cannot be used with these, and the cure."""
    parts = str(written_for).split(".")
    if len(parts) != 2 or not all(part.isdecimal() for part in parts):
        return f'MARL_HOOKS = {written_for!r}: expected "major.minor", as in MARL_HOOKS = "{hookspecs.VERSION}"'
    wanted, present = (tuple(int(part) for part in version) for version in (parts, hookspecs.VERSION.split(".")))
    here = f"this is openrlhf-marl {__version__} with version {hookspecs.VERSION}"
    if wanted > present:
        return f"written for version {written_for} of the hooks, {here}; install a newer openrlhf-marl"
    if wanted[0] < present[0]:
        return (
            f"written for version {written_for} of the hooks, {here}, where some of them have changed (docs/compatibility.md); "
            "install a newer release of the plugin, or an older openrlhf-marl"
        )
    return None


def _unknown_arguments(module: ModuleType) -> list[str]:
    """Hooks that ask for arguments which they are not given."""
    problems = []
    for name, spec in vars(hookspecs).items():
        function = getattr(module, name, None)
        if name.startswith("marl_") and inspect.isfunction(function) and hasattr(function, "marl_impl"):
            known = list(inspect.signature(spec).parameters)
            problems += [
                f"{name} has no argument {wanted!r}{nearest(wanted, known)}"
                for wanted, parameter in inspect.signature(function).parameters.items()
                if wanted not in known and parameter.default is parameter.empty  # one with a default is the plugin's own
            ]
    return problems


def _out_of_time(module: ModuleType) -> list[str]:
    """Hooks written as `async def` that nobody awaits."""
    plain = {n for n in vars(hookspecs) if n.startswith("marl_")} - {*AWAITED, *CHAINS}
    return [
        f"{name} is `async def`, and is not awaited; write `def` (docs/hooks.md says which hooks are async)"
        for name in sorted(plain)
        if inspect.iscoroutinefunction(getattr(module, name, None))
    ]


def _awaitable(function: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that is awaited may be a plain function too."""

    async def ready(value: Any) -> Any:
        return value

    @functools.wraps(function)
    def call(*given: Any) -> Any:
        answer = function(*given)
        return answer if answer is None or inspect.isawaitable(answer) else ready(answer)

    return call


def load(name: str) -> ModuleType:
    """Import a plugin by dotted name, entry-point name or `.py` path.

    Raises:
        ConfigurationError: It cannot be found; or its own import failed, with the reason.
    """
    if name.endswith(".py"):
        path = Path(name).resolve()
        return load_file(path, f"marl_plugin_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}")
    if not all(part.isidentifier() for part in name.replace("-", "_").split(".")):
        raise ConfigurationError(f"plugin {name!r}: expected a dotted module name, an entry-point name or a .py file")
    for entry in metadata.entry_points(group=GROUP):
        if entry.name == name:
            name = entry.value
            break
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name == missing or name.startswith(missing + "."):
            known = [*SHIPPED, *(e.name for e in metadata.entry_points(group=GROUP))]
            raise ConfigurationError(
                f"plugin {name!r} is not a module, an entry point of group {GROUP!r} or a .py file{nearest(name, known)}"
            ) from None
        raise ConfigurationError(f"plugin {name}: it imports {missing!r}, which is not installed") from None
    except Exception as error:  # the plugin's own code, of any kind
        raise ConfigurationError(f"plugin {name}: cannot be imported: {_place(error)}") from error


def _place(error: Exception) -> str:
    """What user code raised while it was imported, and where."""
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}: {error.msg}"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{last.filename}:{last.lineno}: {type(error).__name__}: {error}"


def load_file(path: Path, module_name: str) -> ModuleType:
    """Import a `.py` file under a stable module name; the same file is imported once.

    Raises:
        ConfigurationError: The file is missing or cannot be imported.
    """
    if not path.is_file():
        raise ConfigurationError(f"{path}: no such file")
    path = path.resolve()
    known = sys.modules.get(module_name)
    if known is not None and getattr(known, "__file__", None) == str(path):
        return known
    spec = importlib.util.spec_from_file_location(module_name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's own code, of any kind
        del sys.modules[module_name]
        raise ConfigurationError(f"{path}: cannot be imported: {_place(error)}") from error
    return module


def version_of(name: str) -> str:
    """A plugin's version: of its distribution, of this package, or the digest of its file."""
    if name.endswith(".py"):
        return "file:" + hashlib.blake2b(Path(name).read_bytes(), digest_size=8).hexdigest()
    top = name.partition(".")[0]
    if top == "marl_plugins":
        return __version__
    owners = metadata.packages_distributions().get(top)
    return metadata.version(owners[0]) if owners else "unknown"
