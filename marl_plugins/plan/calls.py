"""What is wrong with how roles call their tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from marl_plugins.core.calls import clashes
from marl_plugins.core.failures import nearest
from marl_plugins.core.recipe import Recipe, RoleConfig
from marl_plugins.core.recipe_yaml import Origins
from marl_plugins.core.tools import Tool
from marl_plugins.hosts.vllm_parsers import KINDS, parser_names


def check_calls(recipe: Recipe, origins: Origins, tools: Mapping[str, Tool]) -> list[str]:
    """What is wrong with `calls`, `reasoning` and the names of functions; those of MCP servers show when a run starts."""
    problems = []
    for name, role in recipe.roles.items():
        own = [tools[tool] for tool in role.tools if tool in tools]  # others are reported with the roles
        for key, problem in _problems(role, own):
            problems.append(f"{origins.where('roles', name, key)}: roles.{name}.{key}: {problem}")
    return problems


def _problems(role: RoleConfig, tools: Sequence[Tool]) -> Iterator[tuple[str, str]]:
    for key in KINDS:
        known, given = parser_names(key), getattr(role, key)
        if known and given is not None and given not in known:
            yield key, f"vLLM has no parser {given!r}{nearest(given, known)}"
    if role.reasoning is not None and role.calls is None:
        yield (
            "reasoning",
            "says what is no call in the model's own format, and the role has no `calls`; remove it, or add that",
        )
    if role.calls is not None and not role.tools:
        yield "calls", "the role has no tools to call; name them in `tools`, or remove it"
    for tool in tools:
        if role.calls is not None and tool.functions is None:
            yield "calls", f"tool {tool.name!r} has no functions that could be called by name; give its Tool `functions`"
    yield from (("tools", problem) for problem in clashes(tools))
