"""`model:`, `mapping:` and `policies:` of the recipe: who plays which role."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from marl_plugins.commands.imports.agents import Agent
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.problems import Problem, at


def translate_policies(
    source: ImportSource, agents: Sequence[Agent], model: str | None, report: Report
) -> dict[str, Any]:
    """Returns the recipe's keys for policies, without their flags.

    Args:
        model: `--model`, which replaces every `pretrain`.
    """
    models = _models(source, agents, model, report)
    first = next(iter(models.values()))
    frozen = [agent.role for agent in agents if agent.config.get("is_tuning") is False]
    if source.settings.get("shared_agents"):
        if frozen:
            report.note(
                "shared_agents: one policy plays all roles and is trained, although "
                f"{', '.join(frozen)} should not be"
            )
        return {"mapping": "shared", "model": first}
    same = len(set(map(str, models.values()))) == 1
    policies: dict[str, dict[str, Any]] = {}
    for role, its_model in models.items():
        policy: dict[str, Any] = {} if same else {"model": its_model}
        if role in frozen:
            policy["trainable"] = False
        if policy:
            policies[role] = policy
    return {**({"model": first} if same else {}), **({"policies": policies} if policies else {})}


def _models(
    source: ImportSource, agents: Sequence[Agent], model: str | None, report: Report
) -> dict[str, Any]:
    """The model of every role."""
    if model is not None:
        return {agent.role: model for agent in agents}
    models = {agent.role: agent.config.get("pretrain") for agent in agents}
    for role, pretrained in models.items():
        if not pretrained or "$" in str(pretrained):
            got = f"{pretrained!r}, which only the shell knew" if pretrained else "none"
            where = at(line=source.where("agents"), key="pretrain", role=role)
            report.problem(
                Problem("imports.no_model", where, got, "a model", "give --model NAME_OR_FOLDER")
            )
    return models
