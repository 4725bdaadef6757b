"""Activating, checking and calling plugins.

Found is not active: only what was named takes part, and what a named plugin's `requires` lists, in that order. A plugin is
named by dotted module name, by entry-point name (group `marl_plugins`), or by the path of a `.py` file (loading.py). How a
hook's implementations are called is its kind (hookspecs.py).
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import re
import textwrap
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from marl_plugins import __version__, hookspecs
from marl_plugins.core.failures import ConfigurationError, RunEnded, RunPaused, nearest
from marl_plugins.core.problems import Problem
from marl_plugins.core.steps import Step, StepPart
from marl_plugins.hookspecs import KINDS, Kind, Purpose
from marl_plugins.loading import load, present, users_code, version_of
from marl_plugins.loading import load_file as load_file  # copied recipes import it from here

if TYPE_CHECKING:
    from marl_plugins.run import Run

BUILTINS = (
    "marl_plugins.builtin.recipe",
    "marl_plugins.tools.python",
    "marl_plugins.tools.sql",
    "marl_plugins.tools.mcp",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
    "marl_plugins.builtin.upstream",
    "marl_plugins.builtin.behaviour",
    "marl_plugins.corrections",
)
"""Always active and asked last: what a run does where no named plugin answers."""


def wraps(options: Any) -> bool:
    """Whether a hook implementation (pluggy's, or its marker's options) wraps the others."""
    return bool(options["wrapper"] or options["hookwrapper"])


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
        named = with_requirements(names, problems)
        for name in present(BUILTINS):
            self.manager.register(importlib.import_module(name), name)
        self.names = tuple(name for name in named if name not in BUILTINS)
        for name in reversed(self.names):  # pluggy asks the last registered first
            self._register(name, named[name], problems)
        problems += self._clashes()
        if problems:
            raise ConfigurationError(problems)

    def _register(self, name: str, module: ModuleType, problems: list[str]) -> None:
        if wrong := misused_hooks(module):
            problems.extend(f"plugin {name}: {problem}" for problem in wrong)
            return
        try:
            self.manager.register(module, name)
        except pluggy.PluginValidationError as error:
            problems.append(f"plugin {name}: {' '.join(str(error).split())}")
            return
        for hook in (h for h, kind in KINDS.items() if kind.awaited):
            for impl in self.implementations(hook):
                if impl.plugin_name == name and not impl.wrapper and not impl.hookwrapper:
                    impl.function = _awaitable(impl.function)

    def _clashes(self) -> list[str]:
        problems = []
        for hook, kind in KINDS.items():
            claims = [
                impl.plugin_name
                for impl in self.implementations(hook)
                if impl.plugin_name not in BUILTINS and not impl.wrapper and not impl.hookwrapper
            ]
            if kind.name in ("first", "around") and len(claims) > 1:
                problems.append(
                    f"plugins {' and '.join(sorted(claims))} both answer {hook}, which takes one answer; name only one of them"
                )
        return problems

    def implementations(self, hook: str) -> list[Any]:
        """pluggy's records of a hook's implementations, the last to be called first."""
        found: list[Any] = getattr(self.manager.hook, hook).get_hookimpls()
        return found

    def in_order(self, hook: str) -> list[Any]:
        """A hook's implementations, built-ins first, then in the order in which the plugins were named."""
        order = {name: n for n, name in enumerate(self.names)}
        return sorted(self.implementations(hook), key=lambda impl: order.get(impl.plugin_name, -1))

    @property
    def hook(self) -> Any:
        """pluggy's callers, for hooks of kind *each*, *first* and *around*."""
        return self.manager.hook

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Let every plugin add its flags.

        Raises:
            ConfigurationError: A flag exists already, or does not carry a name that says whose it is.
        """
        problems: list[Problem | str] = []
        for impl in reversed(self.implementations("marl_options")):
            before = list(parser._actions)
            try:
                with self._users_code("marl_options"):
                    _call(impl, parser=parser)
            except ConfigurationError as error:
                exists = isinstance(error.__cause__, argparse.ArgumentError)
                problems += (
                    error.problems
                    if not exists
                    else [
                        f"plugin {impl.plugin_name}: adds a flag that exists already: {error.__cause__}; plugins name flags after "
                        "themselves"
                    ]
                )
            known = {option for action in parser._actions for option in action.option_strings}
            wrong = [problem for action in parser._actions[len(before) :] for problem in misnamed(action, known)]
            problems += [f"plugin {impl.plugin_name}: {problem}" for problem in wrong]
        if problems:
            raise ConfigurationError(problems)

    def call_while_planning(self, hook: str, **arguments: Any) -> Any:
        """The answers to a hook that is called before anything starts.

        Raises:
            ConfigurationError: A plugin's or a recipe's own code fails, with its file and line.
        """
        wrappers = [
            i.plugin_name
            for i in self.implementations(hook)
            if i.plugin_name in self.names and (i.wrapper or i.hookwrapper)
        ]
        with self._users_code(hook, place=f"plugin {' or '.join(wrappers)}" if wrappers else None):
            return getattr(self.hook, hook)(**arguments)

    def _users_code(self, hook: str, place: str | None = None) -> AbstractContextManager[None]:
        named = {name.partition(".")[0] for name in self.names if not name.endswith(".py")}
        return users_code(hook, packages=named - {__name__.partition(".")[0]}, place=place)

    @asynccontextmanager
    async def started(self, run: Run, purpose: Purpose) -> AsyncIterator[None]:
        """`marl_start` of every plugin, in order; at the end `marl_stop`, in reverse, of all plugins that were reached.

        Raises:
            ConfigurationError: A plugin cannot start.
        """
        stops = {impl.plugin_name: impl for impl in self.implementations("marl_stop")}
        starts = {impl.plugin_name: impl for impl in self.implementations("marl_start")}
        async with AsyncExitStack() as stack:
            for name in (*BUILTINS, *self.names):
                if name in stops:
                    stack.push_async_callback(_stop, stops[name], run)
                if name in starts:
                    with self._users_code("marl_start"):
                        await _finished(_call(starts[name], run=run, purpose=purpose))
            yield

    async def chain(self, hook: str, value: Any, check: Callable[[str, Any], None] | None = None, **arguments: Any) -> Any:
        """Pass `value` (the hook's first argument) through the implementations, built-ins first, then in the order given.

        Args:
            check: Raises where what the plugin of this name returned cannot be used.
        """
        first = next(iter(inspect.signature(getattr(hookspecs, hook)).parameters))
        for impl in (i for i in self.in_order(hook) if applies(i, arguments.get("run"))):
            result = await _finished(_call(impl, **{first: value, **arguments}))
            if result is None:
                raise RunPaused(f"plugin {impl.plugin_name}: {hook} returned nothing; it must return the {first}")
            if check is not None:
                check(impl.plugin_name, result)
            value = result
        return value

    def implements(self, name: str, hook: str) -> bool:
        """Whether a plugin implements a hook."""
        return any(impl.plugin_name == name for impl in self.implementations(hook))

    def owners(self, hook: str) -> list[str]:
        """The named plugins (no built-ins) that implement a hook."""
        return [name for name in self.names if self.implements(name, hook)]

    def claims(self, hook: str) -> bool:
        """Whether a named plugin (not a built-in) implements the hook."""
        return bool(self.owners(hook))

    def state(self, run: Run) -> dict[str, Any]:
        """What every plugin keeps in checkpoints, by the plugin's label."""
        labels = labels_of(self.names)
        return {labels[impl.plugin_name]: _call(impl, run=run) for impl in self.implementations("marl_state")}

    def restore(self, run: Run, states: dict[str, Any]) -> None:
        """Give each plugin its state back; earlier releases saved it under a file's absolute path."""
        labels, saved = labels_of(self.names), labels_of(states)
        by_label = {saved[name]: state for name, state in states.items()}
        for impl in self.implementations("marl_restore"):
            if labels[impl.plugin_name] in by_label:
                _call(impl, run=run, state=by_label[labels[impl.plugin_name]])

    def files(self, run: Run) -> list[Path]:
        """The files that belong to the plugins' state.

        Raises:
            RunEnded: One of them is not below `--ckpt.path`.
        """
        folder = Path(run.args.ckpt.path).absolute()
        found = {p: i.plugin_name for i in self.implementations("marl_files") for p in _call(i, run=run)}
        for path, name in found.items():
            if not path.is_relative_to(folder):
                raise RunEnded(f"plugin {name}: marl_files: {path} is not below --ckpt.path {folder}")
        return list(found)

    def versions(self) -> dict[str, str]:
        """Label to version of the active plugins, for the run's manifest: a file's is its content's digest."""
        labels = labels_of(self.names)
        return {labels[name]: version_of(name) for name in self.names}


def labels_of(names: Iterable[str]) -> dict[str, str]:
    """What checkpoints call plugins, by their names: a file is its name without its folder, so that it may be moved."""
    labels: dict[str, str] = {}
    for name in dict.fromkeys((*BUILTINS, *names)):
        own = label = Path(name).name if name.endswith(".py") else name
        number = 1
        while label in labels.values():
            number += 1
            label = f"{own} ({number})"
        labels[name] = label
    return labels


def need_step(plugins: Plugins, run: Run) -> tuple[str, ...]:
    """The plugins that need a whole training step at once, as `NAME (HOOK)`.

    Args:
        run: Of which `args` and `recipe` are known.
    """
    return tuple(
        f"{impl.plugin_name} ({hook})"
        for hook in ("marl_credit_step", "marl_select")
        for impl in plugins.in_order(hook)
        if impl.plugin_name in plugins.names and applies(impl, run)
    )


def parts_of(plugins: Plugins, run: Run, step: Step) -> dict[str, StepPart]:
    """Every plugin's part of a training step, built-ins first, by the plugin's name.

    Raises:
        RunPaused: A plugin gave something else.
    """
    parts = {}
    for impl in plugins.in_order("marl_step"):
        part = _call(impl, run=run, step=step)
        if not isinstance(part, StepPart | None):
            raise RunPaused(f"plugin {impl.plugin_name}: marl_step returned {part!r:.80}, expected a StepPart or None")
        if part is not None:
            parts[impl.plugin_name] = part
    return parts


def extensions_of(plugins: Plugins, run: Run) -> tuple[str, ...]:
    """The classes that plugins add to training processes, as "module:Class", in the order of the plugins."""
    return tuple(name for impl in plugins.in_order("marl_extensions") for name in _call(impl, run=run) or ())


def applies(impl: Any, run: Run | None) -> bool:
    """Whether an implementation takes part in a run (`marl_plugins.applies_if`)."""
    condition = getattr(impl.function, "applies_if", None)
    return condition is None or bool(condition(run))


def _call(impl: Any, **arguments: Any) -> Any:
    """Call one implementation with the arguments that it takes."""
    return impl.function(*[arguments[name] for name in impl.argnames])


async def _stop(impl: Any, run: Run) -> None:
    try:
        await _finished(_call(impl, run=run))
    except Exception as error:  # the plugin's own code, of any kind
        raise RuntimeError(f"plugin {impl.plugin_name}: marl_stop: {type(error).__name__}: {error}") from error


async def _finished(answer: Any) -> Any:
    return await answer if inspect.isawaitable(answer) else answer


def with_requirements(names: Iterable[str], problems: list[str]) -> dict[str, ModuleType]:
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
            problems.extend(f"{p}{because}" for p in error.problems)
            return
        canonical = module.__name__ if not name.endswith(".py") else str(Path(name).resolve())
        if canonical in found:
            return
        requires = getattr(module, "requires", ())
        if not isinstance(requires, list | tuple) or not all(isinstance(r, str) for r in requires):
            problems.append(f"plugin {name}: requires = {requires!r}: expected a list of names of plugins")
            return
        for requirement in requires:
            add(requirement, name)
        found[canonical] = module

    for name in names:
        add(name, None)
    return found


def misnamed(action: argparse.Action, known: Iterable[str]) -> list[str]:
    """What is wrong with a flag that a plugin adds.

    Args:
        known: All flags, this one among them.
    """
    if action.required or not action.option_strings:
        name = (*action.option_strings, action.dest)[0]
        return [
            f"adds {name}, which has to be given; add a flag with a default, and refuse in marl_configure what is missing"
        ]
    problems = []
    for flag in action.option_strings:
        inside = [other for other in known if other.startswith(f"{flag}.") or flag.startswith(f"{other}.")]
        if "." not in flag or flag.startswith("--policy."):
            problems.append(f"adds the flag {flag}; plugins name flags after themselves: --NAME.{flag.lstrip('-')}")
        elif inside:
            problems.append(f"adds the flag {flag}, and there is {inside[0]}: one name cannot begin another; rename it")
    try:
        _ = (action.help or "") % vars(action)
    except (ValueError, TypeError, KeyError):
        problems.append(
            f"adds the flag {action.option_strings[0]}, whose help cannot be shown: write %% for a percent sign"
        )
    return problems


def misused_hooks(module: ModuleType) -> list[str]:
    """What is wrong with a plugin's hooks, as far as its functions show."""
    if mismatch := _other_version(getattr(module, "MARL_HOOKS", hookspecs.VERSION)):
        return [mismatch]
    if wrong := [*_unknown_arguments(module), *_needlessly_async(module)]:
        return wrong
    problems = []
    for name, function in vars(module).items():
        marked = hasattr(function, "marl_impl")
        if marked and name not in KINDS:
            problems.append(f"{_line(function)}there is no hook {name!r}{nearest(name, KINDS)}")
        elif marked:
            problems += [_line(function) + problem for problem in _misused(name, KINDS[name], function.marl_impl)]
            if KINDS[name].name == "chain" and _returns_nothing(function):
                problems.append(f"{_line(function)}{name} returns nothing; return what it is given, changed or not")
        elif name.startswith("marl_") and inspect.isfunction(function):
            problems.append(f"{_line(function)}{name} is not marked with @marl_plugins.hookimpl and would never be called")
    hooks = {name for name, value in vars(module).items() if hasattr(value, "marl_impl")}
    if not hooks and not problems:
        problems.append("implements no hook (functions marked with @marl_plugins.hookimpl)")
    may_differ = getattr(module, "may_differ", ())
    if not isinstance(may_differ, list | tuple) or not all(isinstance(flag, str) for flag in may_differ):
        problems.append(f'may_differ = {may_differ!r}: expected names of flags, as in may_differ = ("brevity.url",)')
    if "marl_state" in hooks and "marl_restore" not in hooks:
        problems.append("marl_state without marl_restore: what it saves would never come back; add marl_restore")
    return problems


def _line(function: Any) -> str:
    """Where a hook stands in its plugin's file, to begin a problem with; empty where it is not a Python function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"line {code.co_firstlineno}: " if code else ""


def _returns_nothing(function: Any) -> bool:
    """Whether a function comes to its end and never returns a value, as far as its source says so."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError):
        return False
    if not tree.body or not isinstance(tree.body[0], ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    if isinstance(tree.body[0].body[-1], ast.Raise):
        return False
    values = [n.value for n in ast.walk(tree) if isinstance(n, ast.Return | ast.Yield) and n.value is not None]
    return all(isinstance(value, ast.Constant) and value.value is None for value in values)


def _misused(name: str, kind: Kind, options: Any) -> list[str]:
    """What the marker of one implementation says that its hook's kind does not allow."""
    if not wraps(options):
        if kind.name in ("first", "around") and options["trylast"]:
            return [f"{name} is marked trylast and would be asked after the built-in, which always answers; remove trylast"]
        return []
    if kind.own:
        return [f"{name} is each plugin's own and cannot be wrapped"]
    return [f"{name} is a chain and cannot be wrapped; change the value and return it"] if kind.name == "chain" else []


def _other_version(written_for: object) -> str | None:
    """Why a plugin that was written for a version of the hooks cannot be used with these, and the fix."""
    parts = str(written_for).split(".")
    if len(parts) != 2 or not all(re.fullmatch(r"\d{1,4}", part) for part in parts):
        return f'MARL_HOOKS = {written_for!r}: expected "major.minor", as in MARL_HOOKS = "{hookspecs.VERSION}"'
    wanted, present = (tuple(int(part) for part in version) for version in (parts, hookspecs.VERSION.split(".")))
    here = f"this is openrlhf-marl {__version__} with version {hookspecs.VERSION}"
    if wanted > present:
        return f"written for version {written_for} of the hooks, {here}; install a newer openrlhf-marl"
    if wanted[0] < present[0]:
        return (
            f"written for version {written_for} of the hooks, {here}, where some of them have changed "
            "(openrlhf docs compatibility); install a newer release of the plugin, or an older openrlhf-marl"
        )
    return None


def _unknown_arguments(module: ModuleType) -> list[str]:
    """Hooks with arguments that they are not given."""
    problems = []
    for name in KINDS:
        function = getattr(module, name, None)
        if inspect.isfunction(function) and hasattr(function, "marl_impl"):
            known = list(inspect.signature(getattr(hookspecs, name)).parameters)
            problems += [
                f"{_line(function)}{name} has no argument {wanted!r}{nearest(wanted, known)}"
                for wanted, parameter in inspect.signature(function).parameters.items()
                if wanted not in known and parameter.default is parameter.empty  # one with a default is the plugin's own
            ]
    return problems


def _needlessly_async(module: ModuleType) -> list[str]:
    """Hooks written as `async def` that are not awaited."""
    return [
        f"{_line(getattr(module, name))}{name} is `async def`, and is not awaited; write `def` (see `openrlhf docs hooks`)"
        for name, kind in sorted(KINDS.items())
        if not kind.awaited and inspect.iscoroutinefunction(getattr(module, name, None))
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
