"""Checks of how roles call their tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from marl_plugins.core.calls import clashes
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.schema import Recipe, RoleConfig
from marl_plugins.core.tools import Tool


def check_calls(recipe: Recipe, tools: Mapping[str, Tool], sent: bool) -> Iterator[Problem]:
    """Returns what is wrong with `calls`, `reasoning` and the names of functions; those of MCP
    servers, and of vLLM's parsers, show when a run starts.

    Args:
        sent: Whether tools may also be sent with a call, by the program that makes it.
    """
    for name, role in recipe.roles.items():
        own = [
            tools[tool] for tool in role.tools if tool in tools
        ]  # others are reported with the roles
        for key, problem in _problems(role, own, sent):
            yield problem.within(key=f"roles.{name}.{key}")


def _problems(role: RoleConfig, tools: Sequence[Tool], sent: bool) -> Iterator[tuple[str, Problem]]:
    if role.reasoning is not None and role.calls is None:
        yield (
            "reasoning",
            Problem(
                "calls.reasoning",
                got="says what is no call in the model's own format, and the role has no `calls`",
                fix="remove it, or add that",
            ),
        )
    if role.calls is not None and not role.tools and not sent:
        yield (
            "calls",
            Problem(
                "calls.no_tools",
                got="the role has no tools to call",
                fix="name them in `tools`, or remove it",
            ),
        )
    for tool in tools:
        if role.calls is not None and tool.functions is None:
            yield (
                "calls",
                Problem(
                    "calls.no_functions",
                    got=f"tool {tool.name!r} has no functions that could be called by name",
                    fix="give its Tool `functions`",
                ),
            )
    yield from (("tools", problem) for problem in clashes(tools))
