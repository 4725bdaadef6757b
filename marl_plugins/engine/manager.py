"""Activating, checking and calling plugins.

Found is not active: only what was named takes part, and what a named plugin's `requires` lists, in
that order. A plugin is named by dotted module name, by entry-point name (group `marl_plugins`), or
by the path of a `.py` file (loading.py). How a hook's implementations are called is its kind
(hookspecs.py).
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from marl_plugins.core import hookspecs
from marl_plugins.core.failures import ConfigurationError, RunEnded, RunPaused
from marl_plugins.core.hookspecs import KINDS, Purpose
from marl_plugins.core.loading import load, present, users_code, version_of
from marl_plugins.core.loading import load_file as load_file  # copied recipes import it from here
from marl_plugins.core.plugin_names import BUILTINS
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.scoring import answer_of
from marl_plugins.core.steps import Step, StepPart
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.hook_faults import IN_RUNS, guarded
from marl_plugins.engine.plugin_checks import misnamed, misused_hooks
from marl_plugins.engine.plugin_checks import wraps as wraps

if TYPE_CHECKING:
    from marl_plugins.core.run import Run

Check = Callable[[str, Any, Any], None]
"""What a link of a chain is held to: `check(plugin, given, answer)`."""


class _Manager(pluggy.PluginManager):
    """pluggy's, which looks at every name of every module at every plan: a sixth of its time."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if not hasattr(vars(plugin).get(name), "marl_impl"):
            return None
        return super().parse_hookimpl_opts(plugin, name)


class Plugins:
    """The active plugins of a run.

    Args:
        names: As the user gave them, in order; repeated names count once.

    Raises:
        ConfigurationError: Plugins that cannot be found or imported, misspelt or misused hooks, two
            plugins that claim the same first-result hook; all of them at once.
    """

    def __init__(self, names: Sequence[str]):
        self.manager = _Manager("marl")
        self.manager.add_hookspecs(hookspecs)
        problems: list[Problem] = []
        named = with_requirements(names, problems)
        for name in present(BUILTINS):
            self.manager.register(importlib.import_module(name), name)
        self.names = tuple(name for name in named if name not in BUILTINS)
        for name in reversed(self.names):  # pluggy asks the last registered first
            self._register(name, named[name], problems)
        problems += clashes(self)
        if problems:
            raise ConfigurationError(problems)

    def _register(self, name: str, module: ModuleType, problems: list[Problem]) -> None:
        if wrong := misused_hooks(module):
            problems += [problem.within(plugin=name) for problem in wrong]
            return
        try:
            self.manager.register(module, name)
        except pluggy.PluginValidationError as error:
            problems.append(
                Problem("plugin.signature", at(plugin=name), " ".join(str(error).split()))
            )
            return
        for hook in IN_RUNS:
            for impl in (i for i in self.implementations(hook) if i.plugin_name == name):
                impl.function = guarded(name, hook, impl.function, wraps(impl.opts))

    def implementations(self, hook: str) -> list[Any]:
        """Returns pluggy's records of a hook's implementations, the last to be called first."""
        implementations: list[Any] = getattr(self.manager.hook, hook).get_hookimpls()
        return implementations

    def in_order(self, hook: str) -> list[Any]:
        """Returns a hook's implementations, built-ins first, then in the order in which the plugins
        were named."""
        order = {name: n for n, name in enumerate(self.names)}
        return sorted(self.implementations(hook), key=lambda impl: order.get(impl.plugin_name, -1))

    @property
    def hook(self) -> Any:
        """pluggy's callers, for hooks of kind *each*, *first* and *around*."""
        return self.manager.hook

    def options(self, parser: argparse.ArgumentParser) -> None:
        """Lets every plugin add its flags.

        Raises:
            ConfigurationError: A flag exists already, or does not carry a name that says whose it
                is.
        """
        problems: list[Problem] = []
        for impl in reversed(self.implementations("marl_options")):
            before = len(parser._actions)
            try:
                with self._users_code("marl_options"):
                    _call(impl, parser=parser)
            except ConfigurationError as error:
                problems += error.problems
                if isinstance(error.__cause__, argparse.ArgumentError):
                    got = f"adds a flag that exists already: {error.__cause__}"
                    fix = "plugins name flags after themselves"
                    problems[-1] = Problem(
                        "plugin.flag_exists", at(plugin=impl.plugin_name), got, fix=fix
                    )
            known = {option for action in parser._actions for option in action.option_strings}
            wrong = [
                problem
                for action in parser._actions[before:]
                for problem in misnamed(action, known)
            ]
            problems += [problem.within(plugin=impl.plugin_name) for problem in wrong]
        if problems:
            raise ConfigurationError(problems)

    def call_while_planning(self, hook: str, **arguments: Any) -> Any:
        """Returns the answers to a hook that is called before anything starts.

        Raises:
            ConfigurationError: A plugin's or a recipe's own code fails, with its file and line.
        """
        wrappers = [
            i.plugin_name
            for i in self.implementations(hook)
            if i.plugin_name in self.names and wraps(i.opts)
        ]
        with self._users_code(hook, place=at(plugin=wrappers) if wrappers else None):
            return getattr(self.hook, hook)(**arguments)

    def _users_code(self, hook: str, place: Where | None = None) -> AbstractContextManager[None]:
        named = {name.partition(".")[0] for name in self.names if not name.endswith(".py")}
        return users_code(at(hook=hook), packages=named - {__name__.partition(".")[0]}, place=place)

    @asynccontextmanager
    async def started(self, run: Run, purpose: Purpose) -> AsyncIterator[None]:
        """Calls `marl_start` of every plugin, in order, and at the end `marl_stop`, in reverse, of
        all plugins that were reached.

        Raises:
            ConfigurationError: A plugin cannot start.
        """
        stops = {impl.plugin_name: impl for impl in self.implementations("marl_stop")}
        starts = {impl.plugin_name: impl for impl in self.implementations("marl_start")}
        async with AsyncExitStack() as stack:
            for name in (*BUILTINS, *self.names):
                if name in stops:
                    stack.push_async_callback(answer_of, _call, stops[name], run=run)
                if name in starts:
                    with self._users_code("marl_start"):
                        await answer_of(_call, starts[name], run=run, purpose=purpose)
            yield

    async def chain(
        self, hook: str, value: Sequence[Any], check: Check | None = None, **arguments: Any
    ) -> Sequence[Any]:
        """Passes `value` (the hook's first argument) through the implementations, built-ins first,
        then in the order given.

        Args:
            check: Raises where what a plugin made of what it was given cannot be used:
                `check(plugin, given, answer)`.
        """
        first = next(iter(inspect.signature(getattr(hookspecs, hook)).parameters))
        for impl in (i for i in self.in_order(hook) if applies(i, arguments.get("run"))):
            result = await answer_of(_call, impl, **{first: list(value), **arguments})
            if result is None:
                raise RunPaused(
                    f"plugin {impl.plugin_name}: {hook} returned nothing; it must return the "
                    f"{first}"
                )
            if check is not None:
                check(impl.plugin_name, value, result)
            value = result
        return value

    def implements(self, name: str, hook: str) -> bool:
        """Returns whether a plugin implements a hook."""
        return any(impl.plugin_name == name for impl in self.implementations(hook))

    def owners(self, hook: str, run: Run | None = None) -> list[str]:
        """Returns the named plugins that implement a hook; with a run, also built-ins that only
        some runs have, if it does."""
        return [
            impl.plugin_name
            for impl in self.in_order(hook)
            if impl.plugin_name in self.names
            or (run is not None and hasattr(impl.function, "applies_if") and applies(impl, run))
        ]

    def claims(self, hook: str, run: Run | None = None) -> bool:
        """Returns whether a named plugin (not a built-in) implements the hook; `run` as in
        `owners`."""
        return bool(self.owners(hook, run))

    @property
    def labels(self) -> dict[str, str]:
        """What checkpoints call plugins, by their names: a file is its name without its folder, so
        that it may be moved."""
        labels: dict[str, str] = {}
        same = Counter[str]()
        for name in (*BUILTINS, *self.names):
            own = Path(name).name if name.endswith(".py") else name
            same[own] += 1
            labels[name] = own if same[own] == 1 else f"{own} ({same[own]})"
        return labels

    def state(self, run: Run) -> dict[str, Any]:
        """Returns what every plugin keeps in checkpoints, by the plugin's label, without those that
        keep nothing."""
        labels = self.labels
        states = {
            labels[impl.plugin_name]: _call(impl, run=run)
            for impl in self.implementations("marl_state")
        }
        return {label: state for label, state in states.items() if state is not None}

    def restore(self, run: Run, states: dict[str, Any]) -> None:
        """Gives each plugin its state back."""
        labels = self.labels
        for impl in self.implementations("marl_restore"):
            if labels[impl.plugin_name] in states:
                _call(impl, run=run, state=states[labels[impl.plugin_name]])

    def files(self, run: Run) -> list[Path]:
        """Returns the files that belong to the plugins' state.

        Raises:
            RunEnded: One of them is not below `--ckpt.path`.
        """
        folder = Path(run.args.ckpt.path).absolute()
        owners = {
            p: i.plugin_name for i in self.implementations("marl_files") for p in _call(i, run=run)
        }
        for path, name in owners.items():
            if not path.is_relative_to(folder):
                raise RunEnded(
                    f"plugin {name}: marl_files: {path} is not below --ckpt.path {folder}"
                )
        return list(owners)

    def versions(self) -> dict[str, str]:
        """Maps the labels of the active plugins to their versions, for the run's manifest: a file's
        is its content's digest."""
        labels = self.labels
        return {labels[name]: version_of(name) for name in self.names}


def clashes(plugins: Plugins) -> list[Problem]:
    """Returns the hooks that take one answer and to which several named plugins give one."""
    problems = []
    for hook, kind in KINDS.items():
        claims = [
            impl.plugin_name
            for impl in plugins.implementations(hook)
            if impl.plugin_name not in BUILTINS and not wraps(impl.opts)
        ]
        if kind.name in ("first", "around") and len(claims) > 1:
            where, got = (
                at(plugin=sorted(claims), hook=hook),
                "both answer, and the hook takes one answer",
            )
            problems.append(Problem("plugin.both", where, got, fix="name only one of them"))
    return problems


def claims_of(plugins: Plugins) -> dict[str, tuple[tuple[str, Callable[[Run], bool]], ...]]:
    """Returns the plugins that score and credit actions and select rows, by hook, in the order in
    which they are called, each with whether it is in a run; of built-ins those that only some runs
    have."""
    return {
        hook: tuple(
            (impl.plugin_name, partial(applies, impl))
            for impl in plugins.in_order(hook)
            if impl.plugin_name in plugins.names or hasattr(impl.function, "applies_if")
        )
        for hook in ("marl_score_action", "marl_credit", "marl_credit_step", "marl_select")
    }


def parts_of(plugins: Plugins, run: Run, step: Step) -> dict[str, StepPart]:
    """Returns every plugin's part of a training step, built-ins first, by the plugin's name.

    Raises:
        RunPaused: A plugin gave something else.
    """
    parts = {}
    for impl in plugins.in_order("marl_step"):
        part = _call(impl, run=run, step=step)
        if not isinstance(part, StepPart | None):
            raise RunPaused(
                f"plugin {impl.plugin_name}: marl_step returned {part!r:.80}, expected a StepPart "
                "or None"
            )
        if part is not None:
            parts[impl.plugin_name] = part
    return parts


def chosen_tasks(
    plugins: Plugins, run: Run, step: int, tasks: Sequence[Task], known: Mapping[str, Task]
) -> list[Task]:
    """Returns the tasks of a training step, as plugins have chosen them (`marl_batch`).

    Args:
        known: The training tasks by id.

    Raises:
        RunPaused: A plugin gave another number of tasks, one twice, or one that is no training
            task.
    """
    hook, chosen, all_tasks = "marl_batch", list(tasks), list(known.values())
    for impl in (i for i in plugins.in_order(hook) if applies(i, run)):
        answer = _call(impl, tasks=list(chosen), run=run, step=step, all_tasks=all_tasks)
        if not isinstance(answer, list | tuple) or not all(
            isinstance(task, Task) for task in answer
        ):
            raise RunPaused(
                f"plugin {impl.plugin_name}: {hook} returned {answer!r:.80}, expected a list of "
                "tasks"
            )
        if len(answer) != len(chosen):
            raise RunPaused(
                f"plugin {impl.plugin_name}: {hook} returned {len(answer)} tasks, expected "
                f"{len(chosen)}"
            )
        check_tasks_of_step(impl.plugin_name, hook, [], answer, known)
        chosen = list(answer)
    return chosen


def check_tasks_of_step(
    plugin: str, hook: str, before: Sequence[Task], more: Sequence[Task], known: Mapping[str, Task]
) -> None:
    """Checks tasks that a plugin gives a step.

    Args:
        before: The tasks that the step has.
        known: The training tasks by id.

    Raises:
        RunPaused: The step has one already, or the run does not have it.
    """
    seen = {task.id for task in before}
    for task in more:
        if known.get(task.id) != task:
            raise RunPaused(
                f"plugin {plugin}: {hook} gave task {task.id!r:.80}, which is no training task of "
                "this run"
            )
        if task.id in seen:
            raise RunPaused(f"plugin {plugin}: {hook} gave task {task.id!r:.80} twice in one step")
        seen.add(task.id)


def extensions_of(plugins: Plugins, run: Run) -> tuple[str, ...]:
    """Returns the classes that plugins add to training processes, as "module:Class", in the order
    of the plugins."""
    return tuple(
        name for impl in plugins.in_order("marl_extensions") for name in _call(impl, run=run) or ()
    )


def weights_of(plugins: Plugins, run: Run) -> dict[str, str]:
    """Returns the weights that extensions keep: their classes, by the name of the folder for the
    weights."""
    return {
        name: kept
        for impl in plugins.in_order("marl_weights")
        for name, kept in (_call(impl, run=run) or {}).items()
    }


def applies(impl: Any, run: Run | None) -> bool:
    """Returns whether an implementation takes part in a run (`marl_plugins.applies_if`)."""
    condition = getattr(impl.function, "applies_if", None)
    return condition is None or bool(condition(run))


def _call(impl: Any, **arguments: Any) -> Any:
    """Calls one implementation with the arguments that it takes."""
    return impl.function(*[arguments[name] for name in impl.argnames])


def with_requirements(names: Iterable[str], problems: list[Problem]) -> dict[str, ModuleType]:
    """Returns modules by name: each named plugin, preceded by what it requires."""
    modules: dict[str, ModuleType] = {}
    visiting: set[str] = set()

    def add(name: str, wanted_by: str | None) -> None:
        if name in visiting:
            return
        visiting.add(name)
        try:
            module = load(name)
        except ConfigurationError as error:
            problems.extend(problem.within(plugin=wanted_by or ()) for problem in error.problems)
            return
        canonical = str(Path(name).resolve()) if name.endswith(".py") else module.__name__
        if canonical in modules:
            return
        requires = getattr(module, "requires", ())
        if not isinstance(requires, list | tuple) or not all(isinstance(r, str) for r in requires):
            where, expected = at(plugin=name, name="requires"), "a list of names of plugins"
            problems.append(Problem("plugin.requires", where, repr(requires), expected))
            return
        for requirement in requires:
            add(requirement, name)
        modules[canonical] = module

    for name in names:
        add(name, None)
    return modules
