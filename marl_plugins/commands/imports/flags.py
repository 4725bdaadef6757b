"""`flags:` of the recipe, and those of single policies where agents differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.commands.imports import options
from marl_plugins.commands.imports.agents import Agent
from marl_plugins.commands.imports.options import Option
from marl_plugins.commands.imports.read import ImportSource
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.hosts.flags import FLAGS


@dataclass
class ImportedFlags:
    """The translated flags: one value for the run, or one per policy (role -> flag -> value)."""

    run: dict[str, Any] = field(default_factory=dict)
    policies: dict[str, dict[str, Any]] = field(default_factory=dict)


def translate_flags(source: ImportSource, agents: Sequence[Agent], report: Report) -> ImportedFlags:
    flags = ImportedFlags()
    estimator = _estimator(source, agents, report)
    adapters = _values("lora_rank", options.FLAGS_OF["lora_rank"], agents)
    for theirs, option in options.FLAGS_OF.items():
        values = _values(theirs, option, agents)
        if option.flag.startswith(
            "ds.lora."
        ):  # theirs has an alpha and targets for whole models too
            values = {role: value for role, value in values.items() if role in adapters}
        if not values:
            continue
        estimators = options.only_with(option.flag)
        if estimators and estimator not in estimators:
            if source.sets(theirs):
                report.leave_out(theirs, f"only with estimator {', '.join(estimators)}")
        elif len(values) == len(agents) and len(set(map(repr, values.values()))) == 1:
            flags.run[option.flag] = value = next(iter(values.values()))
            report.take(
                theirs, f"`{option.flag}: {value}`" + (f" ({option.note})" if option.note else "")
            )
        elif FLAGS[option.flag].status == "policy" and not source.settings.get("shared_agents"):
            for role, value in values.items():
                flags.policies.setdefault(role, {})[option.flag] = value
            report.take(theirs, f"`{option.flag}` of single policies")
        else:
            got = ", ".join(f"{role} {value}" for role, value in values.items())
            where = at(line=source.where("agents"), key=theirs)
            said = f"differs between agents ({got}), but it is one value for the run here"
            report.problem(Problem("imports.unequal", where, said, fix="make them equal"))
    list_left_out(source, report)
    if estimator in options.GROUPED:
        flags.run["groups.by"] = "task+role+turn"
        report.note(
            f"estimator {estimator}: groups.by task+role+turn was chosen; their groups are not "
            "formed that way"
        )
    _set_length(source, agents, flags.run, report)
    if adapters:
        _fit_adapters(flags.run, report)
    _fit_engines(flags.run, report)
    _fit_batch(flags.run, report)
    return flags


def _estimator(source: ImportSource, agents: Sequence[Agent], report: Report) -> str | None:
    """Our name of the estimator, which all agents must share."""
    found = {agent.config.get("advantage_estimator") for agent in agents} - {None}
    if not found:
        report.note("no advantage_estimator is set: theirs defaults to gae, reinforce is used here")
    estimator = options.ESTIMATORS.get(str(next(iter(found), "reinforce_plus_plus")))
    if len(found) > 1 or estimator is None:
        got, known = ", ".join(sorted(map(str, found))), ", ".join(options.ESTIMATORS)
        where = at(line=source.where("agents"), key="advantage_estimator")
        report.problem(Problem("imports.estimator", where, got, f"one of {known}, for all agents"))
    return estimator


def _values(theirs: str, option: Option, agents: Sequence[Agent]) -> dict[str, Any]:
    """The option's value in our form for each role that sets it."""
    found = {agent.role: agent.config.get(theirs) for agent in agents}
    ours = {
        role: option.form(value)
        for role, value in found.items()
        if value is not None and value is not False
    }
    return {role: value for role, value in ours.items() if value is not None}


def list_left_out(source: ImportSource, report: Report) -> None:
    """Reports the options without a counterpart that the configuration itself sets."""
    settings = source.settings
    places: list[tuple[tuple[str, ...], Mapping[str, Any]]] = [((), settings)]
    places.append((("default_agent",), settings.get("default_agent") or {}))
    for place, mapping in places:
        for name, value in mapping.items():
            if (
                name in options.LEFT_OUT
                and (*place, name) not in source.inherited
                and value not in (None, False)
            ):
                report.leave_out(name, options.LEFT_OUT[name])
    for entry in settings["agents"]:
        for config in entry.values():
            for name in config or {}:
                if name in options.LEFT_OUT:
                    report.leave_out(name, options.LEFT_OUT[name])
    for name in settings.get("workflow_args") or {}:
        if name in options.WORKFLOW_LEFT_OUT:
            report.leave_out(f"workflow_args.{name}", options.WORKFLOW_LEFT_OUT[name])


def _set_length(
    source: ImportSource, agents: Sequence[Agent], flags: dict[str, Any], report: Report
) -> None:
    """`data.max_len`: the length of prompt and answer together."""
    config = {**source.settings, **agents[0].config}
    longest = config.get("max_len") or None
    if longest is None and config.get("prompt_max_len"):
        longest = config["prompt_max_len"] + (config.get("generate_max_len") or 1024)
    if longest is not None:
        flags["data.max_len"] = int(longest)
        report.take("max_len, prompt_max_len", f"`data.max_len: {longest}`")


def _fit_adapters(flags: dict[str, Any], report: Report) -> None:
    """Gives engines devices of their own: with adapters they cannot sleep."""
    sharing = [
        flag
        for flag in ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
        if flags.pop(flag, None)
    ]
    if sharing:
        report.note(
            f"lora_rank: engines with adapters do not sleep here; left out: {', '.join(sharing)}"
        )


def _fit_engines(flags: dict[str, Any], report: Report) -> None:
    """Adjusts the engines to `colocate_all_models`, with which they must cover exactly the ranks'
    devices."""
    if not flags.get("train.colocate_all"):
        return
    ranks = flags.get("actor.num_nodes", 1) * flags.get("actor.num_gpus_per_node", 8)
    per_engine = flags.get("vllm.tensor_parallel_size", 1)
    if flags.get("vllm.num_engines", 1) * per_engine != ranks and ranks % per_engine == 0:
        report.note(
            f"colocate_all_models: {flags.get('vllm.num_engines')} engines and {ranks} ranks "
            "cannot share devices, here or there; "
            f"vllm.num_engines was set to {ranks // per_engine}"
        )
        flags["vllm.num_engines"] = ranks // per_engine


def _fit_batch(flags: dict[str, Any], report: Report) -> None:
    """`train.batch_size` must divide the trajectories of a step: else the largest number below it
    that does."""
    trajectories = flags.get("rollout.batch_size", 1024) * flags.get(
        "rollout.n_samples_per_prompt", 1
    )
    batch = flags.get("train.batch_size")
    if batch and trajectories % batch:
        divisor = max(n for n in range(1, min(batch, trajectories) + 1) if trajectories % n == 0)
        report.note(
            f"train_batch_size {batch} does not divide a step's {trajectories} trajectories; "
            f"{divisor} is used"
        )
        flags["train.batch_size"] = divisor
