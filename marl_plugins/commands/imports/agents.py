"""Agents of MARTI and MAPPA, each with all settings that apply to it and the name of its role
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marl_plugins.commands.imports.options import options
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.shapes import identifier


@dataclass(frozen=True)
class Agent:
    """An agent of theirs.

    Args:
        role: Our name.
        key: Its name in `agents`.
        config: All settings that apply to it: shared ones, `default_agent`, its own.
    """

    role: str
    key: str
    config: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Returns what templates call it, if not `key`."""
        return str(self.config.get("role") or self.key)


def read_agents(source: ImportSource) -> list[Agent]:
    """Returns all agents, in their order."""
    settings = source.settings
    known = options()["settings"]
    shared = {
        name: value
        for name, value in settings.items()
        if name in ("pretrain", "is_tuning") or (name in known and known[name].flag)
    }
    shared |= settings.get("default_agent") or {}
    agents: list[Agent] = []
    for entry in settings["agents"]:
        for key, config in entry.items():
            agent = Agent("", str(key), {**shared, "role": None, **(config or {})})
            named = agent.title if agent.key.isdigit() else agent.key
            agents.append(replace(agent, role=identifier(named, [a.role for a in agents])))
    return agents
