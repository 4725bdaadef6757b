"""The plan of a run of engines only (`openrlhf eval`, `openrlhf serve`, `openrlhf fork`)."""

from __future__ import annotations

import copy
import json
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.run import Run
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.build import build_plan, use_engines_only
from marl_plugins.engine.plan.flags import split_flags
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resume import COMMAND_FILE

TRAINING = ("resume", "resume_with_changes")
"""Flags of `openrlhf train` that would do nothing here."""
OF_TRAINING = ("tasks.not_evaluated",)
"""Codes of warnings that say what a training does not do."""
NO_TASKS = Problem(
    "tasks.none_held_out",
    got="there are no held-out tasks: the recipe's `tasks:` gives none for eval, nor "
    "--eval.dataset",
)


def models_parser(program: str) -> UpstreamParser:
    """Returns a command's own flags that say whose weights the engines have."""
    own = UpstreamParser(prog=program, add_help=False, allow_abbrev=False)
    own.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="a run's output folder: one folder of weights per policy",
    )
    own.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="take these policies from --models, the others from the recipe",
    )
    return own


def planned(words: Sequence[str], own: UpstreamParser) -> tuple[Plan, Namespace]:
    """Returns the plan of a run of engines only, and the command's own flags.

    Raises:
        ConfigurationError: All that is wrong with them.
    """
    flags = split_flags(words)
    names = [option.removeprefix("--") for option in own._option_string_actions]
    if resumed := [f.name for f in flags if f.name in TRAINING]:
        fix = "what a run has saved is evaluated with --recipe RECIPE --models FOLDER"
        where = at(flag=resumed[0])
        raise ConfigurationError(Problem("eval.resumed", where, "continues a training", fix=fix))
    options = own.parse_args(
        [w for f in flags if f.name in names for w in (f"--{f.name}", *f.words)]
    )
    plan = build_plan([w for f in flags if f.name not in names for w in f.argv])
    run = only_players(plan.run)
    if options.models:
        run = with_models(run, options.models, options.only)
    elif options.only:
        raise ConfigurationError(
            Problem(
                "eval.only",
                got="--only names policies that are taken from --models FOLDER, which is not given",
                flags=("only", "models"),
            )
        )
    return replace(plan, run=run), options


def only_players(run: Run) -> Run:
    """Returns the run with the policies that play a role, as engines only: nothing is trained, and
    no coach is asked."""
    playing = {policy for role in run.recipe.roles for policy in run.recipe.policies_of(role)}
    policies = tuple(
        replace(policy, trainable=False) for policy in run.policies if policy.name in playing
    )
    policy_args = {policy.name: copy.deepcopy(run.policy_args[policy.name]) for policy in policies}
    for args in policy_args.values():
        use_engines_only(args)
    warnings = tuple(w for w in run.warnings if w.code not in OF_TRAINING)
    players = replace(run, policies=policies, policy_args=policy_args, warnings=warnings)
    return with_adapters(players)


def with_models(run: Run, folder: Path, only: Sequence[str]) -> Run:
    """Returns the run with saved weights in place of the recipe's models; a policy that follows
    another one has those of that one.

    Args:
        only: Names of policies; empty for all.

    Raises:
        ConfigurationError: The folder has none, or there is no policy of such a name.
    """
    names = [p.name for p in run.policies if not p.served]
    saved_as = {p.name: p.follows or p.name for p in run.policies}
    problems = [
        Problem(
            "eval.no_policy",
            at(flag="only"),
            f"{name}: there is no policy of that name",
            fix=meant(name, names),
        )
        for name in only
        if name not in names
    ]
    to_load = list(only) or names
    for name in to_load:
        if name in names and not (folder / saved_as[name] / "config.json").is_file():
            saved = sorted(p.parent.name for p in folder.glob("*/config.json"))
            has = f"it holds weights of {', '.join(saved)}" if saved else "it holds no weights"
            if (folder / "config.json").is_file():
                has = "it is itself a model; expected the folder above it, of the run"
            elif not saved and (folder / COMMAND_FILE).is_file():
                has += f", because a run writes them at its end: openrlhf train --resume {folder}"
            problems.append(
                Problem(
                    "eval.no_weights",
                    at(flag="models"),
                    f"{folder}: no folder {saved_as[name]!r} with a model in it",
                    fix=str(has),
                )
            )
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
    models = {name: str((folder / saved_as[name]).absolute()) for name in to_load}
    return with_folders(run, models)


def with_folders(run: Run, models: Mapping[str, str]) -> Run:
    """Returns the run with other models.

    Args:
        models: Their folders, by policy.
    """
    policy_args = {name: copy.deepcopy(args) for name, args in run.policy_args.items()}
    for name, model in models.items():
        policy_args[name].actor.model_name_or_path = model
    policies = tuple(
        replace(p, model=models[p.name], adapter="") if p.name in models else p
        for p in run.policies
    )
    return with_adapters(replace(run, policies=policies, policy_args=policy_args))


def with_adapters(run: Run) -> Run:
    """Returns the run with models that are saved adapters (PEFT's folders) told from the models
    that they belong to, of which engines answer with all: added to bfloat16 weights, most of a
    small adapter would be lost.

    Raises:
        ConfigurationError: A model is gone or another one's, or no plugin has engines for adapters.
    """
    policies, problems = [], list[Problem]()
    for policy in run.policies:
        folder, actor = Path(policy.model), run.policy_args[policy.name].actor
        file = folder / "adapter_config.json"
        if file.is_file():
            config = json.loads(file.read_text(encoding="utf-8"))
            actor.model_name_or_path = str(config.get("base_model_name_or_path"))
            run.policy_args[policy.name].ds.lora.rank = int(config.get("r", 0))
            problems += _adapter_problems(run, policy.name, folder, Path(actor.model_name_or_path))
            policy = replace(policy, model=actor.model_name_or_path, adapter=str(folder))
        policies.append(policy)
    if problems:
        raise ConfigurationError(problems)
    return replace(run, policies=tuple(policies))


def _adapter_problems(run: Run, policy: str, folder: Path, base: Path) -> Iterator[Problem]:
    where = at(policy=policy, file=folder / "adapter_config.json")
    if run.processes is None or not run.processes.adapters:
        got = f"it is an adapter of {base}, and no plugin has engines for adapters"
        yield Problem("eval.adapter", where, got, fix="add --plugin marl_plugins.adapters")
    if not (base / "config.json").is_file():
        if base.is_absolute():
            got = f"it is an adapter of {base}, which is not there"
            fix = "put the model there, or name another in base_model_name_or_path"
            yield Problem("eval.base_gone", where, got, fix=fix)
        return
    saved, there = (
        json.loads((place / "config.json").read_text(encoding="utf-8")) for place in (folder, base)
    )
    for key in ("hidden_size", "num_hidden_layers", "vocab_size"):
        if saved.get(key) != there.get(key):
            got = f"{key} of {base} is {there.get(key)}, and its own model's {saved.get(key)}"
            yield Problem("eval.other_base", where, got)
