"""`flags:` of the recipe, and those of single policies where agents differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.commands.imports.agents import Agent
from marl_plugins.commands.imports.options import options
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.hosts.flags import FLAGS

GROUPED = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")


@dataclass
class ImportedFlags:
    """The translated flags: one value for the run, or one per policy (role -> flag -> value)."""

    run: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)


def translate_flags(source: ImportSource, agents: Sequence[Agent], report: Report) -> ImportedFlags:
    flags = ImportedFlags()
    estimator = _estimator(source, agents, report)
    adapters = _values("lora_rank", agents)
    for theirs, option in options()["settings"].items():
        ours, values = option.flag, _values(theirs, agents)
        if ours.startswith("ds.lora."):  # theirs has an alpha and targets for whole models too
            values = {role: value for role, value in values.items() if role in adapters}
        if not (ours and values):
            continue
        estimators = FLAGS[ours].estimators
        if estimators and estimator not in estimators:
            if source.sets(theirs):
                report.leave_out(theirs, f"only with estimator {', '.join(estimators)}")
        elif len(values) == len(agents) and len(set(map(repr, values.values()))) == 1:
            flags.run[ours] = value = next(iter(values.values()))
            note = f" ({option.note})" if option.note else ""
            report.take(theirs, f"`{ours}: {value}`{note}")
        elif FLAGS[ours].status == "policy" and not source.settings.get("shared_agents"):
            for role, value in values.items():
                flags.policies.setdefault(role, {})[ours] = value
            report.take(theirs, f"`{ours}` of single policies")
        else:
            got = ", ".join(f"{role} {value}" for role, value in values.items())
            where = at(line=source.where("agents"), key=theirs)
            differs = f"differs between agents ({got}), but it is one value for the run here"
            report.problem(Problem("imports.unequal", where, differs, fix="make them equal"))
    if estimator in GROUPED:
        flags.run["groups.by"] = "task+role+turn"
        report.note(
            f"estimator {estimator}: groups.by task+role+turn was chosen; their groups are not "
            "formed that way"
        )
    _set_length(source, agents, flags.run, report)
    return flags


def _estimator(source: ImportSource, agents: Sequence[Agent], report: Report) -> str | None:
    """Our name of the estimator, which all agents must share."""
    theirs = {agent.config.get("advantage_estimator") or "" for agent in agents} - {""}
    if not theirs:
        report.note("no advantage_estimator is set: theirs defaults to gae, reinforce is used here")
    known = options()["settings"]["advantage_estimator"].values
    estimator = known.get(next(iter(theirs), "reinforce_plus_plus"))
    if len(theirs) > 1 or estimator is None:
        got, expected = ", ".join(sorted(theirs)), f"one of {', '.join(known)}, for all agents"
        where = at(line=source.where("agents"), key="advantage_estimator")
        report.problem(Problem("imports.estimator", where, got, expected))
    return estimator


def _values(theirs: str, agents: Sequence[Agent]) -> dict[str, Any]:
    """The option's value in our form for each role that sets it."""
    option, values = options()["settings"][theirs], {}
    for agent in agents:
        value = agent.config.get(theirs)
        converted = option.converted(value)
        if value is not False and converted is not None:
            values[agent.role] = converted
    return values


def _set_length(
    source: ImportSource, agents: Sequence[Agent], flags: dict[str, Any], report: Report
) -> None:
    """`data.max_len`: the length of prompt and answer together."""
    config = {**source.settings, **agents[0].config}
    longest = config.get("max_len")
    if longest is None and config.get("prompt_max_len"):
        longest = config["prompt_max_len"] + (config.get("generate_max_len") or 1024)
    if longest is not None:
        flags["data.max_len"] = longest
        report.take("max_len, prompt_max_len", f"`data.max_len: {longest}`")
