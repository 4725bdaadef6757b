"""The parts of a run that plugins bring, checked by type: policies, tools and the estimator."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from marl_plugins.core.estimators import Estimator, check_estimator
from marl_plugins.core.failures import ConfigurationError, place_of
from marl_plugins.core.plugin_names import BUILTINS
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.process_backend import ProcessBackend
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool
from marl_plugins.engine.hosts.devices import critic_gpus
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.plan import Plan


def policies_of(plugins: Plugins, run: Run) -> list[Policy]:
    """Returns all policies that the recipe, or a plugin, gives the run.

    Raises:
        ConfigurationError: A plugin's answer is something else.
    """
    answer = plugins.call_while_planning("marl_policies", run=run)
    owners = plugins.owners("marl_policies")
    right = isinstance(answer, list | tuple) and all(
        isinstance(p, Policy) and isinstance(p.model, str) for p in answer
    )
    # a mapping of no role to any policy is reported with the roles
    if right and (answer or not owners):
        return list(answer)
    expected = (
        "a list of Policy of marl_plugins.core.policy, one at least, each with the name of "
        "its model"
    )
    raise ConfigurationError(wrong_answer(plugins, "marl_policies", f"{answer!r:.80}", expected))


def wrong_answer(plugins: Plugins, hook: str, got: str, expected: str) -> Problem:
    """Returns the problem with what plugins answered to a hook."""
    return Problem("plugin.answer", at(plugin=plugins.owners(hook), hook=hook), got, expected)


def processes_of(plugins: Plugins, run: Run) -> ProcessBackend:
    """Returns the back-end that gives policies their training processes.

    Raises:
        ConfigurationError: A plugin's answer is something else.
    """
    answer = plugins.call_while_planning("marl_processes", run=run)
    if isinstance(answer, ProcessBackend):
        return answer
    expected = "a ProcessBackend of marl_plugins.core.process_backend, or None"
    raise ConfigurationError(wrong_answer(plugins, "marl_processes", _kind(answer), expected))


def tools_of(plugins: Plugins, run: Run) -> dict[str, Tool]:
    """Returns all tools that the plugins bring, by name.

    Raises:
        ConfigurationError: Some are not tools, or two have the same name.
    """
    where = at(plugin=plugins.owners("marl_tools"), hook="marl_tools")
    problems: list[Problem] = []
    tools: dict[str, Tool] = {}
    for answer in plugins.call_while_planning("marl_tools", run=run):
        if not isinstance(answer, Iterable):
            problems.append(wrong_answer(plugins, "marl_tools", _kind(answer), "a list of Tool"))
            continue
        for tool in answer:
            if not isinstance(tool, Tool):
                expected = "a list of Tool"
                problems.append(wrong_answer(plugins, "marl_tools", _kind(tool), expected))
            elif tool.name in tools:
                twice, got = where + at(tool=tool.name), "two tools have this name"
                problems.append(Problem("tools.twice", twice, got, fix="rename one of them"))
            else:
                tools[tool.name] = tool
    if not any(tool.workspaces for tool in tools.values()):
        working = [name for name, tool in tools.items() if tool.in_workspace]
        got = "it works in the trajectory's folder, and no tool gives one"
        problems += [Problem("tools.workspace", at(tool=name), got) for name in working]
    if problems:
        raise ConfigurationError(problems)
    return tools


def _kind(value: Any) -> str:
    """Names what a value is, in an error: a function or class by its name, another value by its
    type."""
    if isinstance(value, Tool):
        return "one Tool"
    return getattr(value, "__name__", None) or f"{type(value).__name__} {value!r:.60}"


def arity_problem(function: Any, arguments: int) -> Problem | None:
    """Returns why a function cannot be called with that many arguments, with its file and line;
    None where it can."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError as error:
        return Problem("code.arguments", at(line=place_of(function)), str(error))
    except ValueError:  # a function written in C tells nothing
        return None
    return None


def has_critics(run: Run) -> bool:
    """Returns whether any policy has a critic."""
    return any(critic_gpus(args) for args in run.policy_args.values())


def estimator_of(plan: Plan) -> Estimator:
    """Returns the run's estimator.

    Raises:
        ConfigurationError: It does not fit the run, or another one was asked for by name.
    """
    run = plan.run
    estimator: Estimator = plan.plugins.call_while_planning("marl_estimator", run=run)
    samples = run.args.rollout.n_samples_per_prompt
    problems = check_estimator(
        estimator, samples, len(run.trained_roles), run.turns, critic=has_critics(run)
    )
    if not is_from_plugin(estimator):
        if problems:
            raise ConfigurationError(problems)
        return estimator
    name, chosen = type(estimator).__name__, run.args.algo.advantage.estimator
    by_name = "algo.advantage.estimator" in run.given
    if (
        isinstance(estimator, Estimator)
        and by_name
        and not (estimator.needs_critic and chosen == "gae")
    ):
        problems.append(
            Problem(
                "estimator.replaced",
                got=f"{name} trains, not --algo.advantage.estimator {chosen}",
                fix="remove the plugin or the flag",
                flags=("algo.advantage.estimator",),
            )
        )
    if problems:
        owners = plan.plugins.owners("marl_estimator")
        raise ConfigurationError(problem.within(plugin=owners) for problem in problems)
    return estimator


def is_from_plugin(estimator: object) -> bool:
    """Returns whether an estimator is not one of the built-in ones."""
    return type(estimator).__module__ not in BUILTINS
