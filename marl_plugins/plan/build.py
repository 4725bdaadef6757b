"""From a command line to a checked plan: everything that can be known before anything starts, and all that is wrong with it.

Precedence: command line, then recipe, then the defaults below, then upstream's. Each flag is first parsed alone, so that
every wrong one is named together with where it stands; then all are parsed together, once for the run and once per policy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.recipe import Origins, Recipe, RoleConfig, find_recipe, load_recipe
from marl_plugins.hosts import cpu, releases, upstream_cli
from marl_plugins.manager import Plugins
from marl_plugins.plan.checks import (
    check_files,
    check_numbers,
    check_policies,
    check_roles,
    check_tasks,
    check_workflow,
    hub_tasks,
    model_problem,
    name_policies,
    tool_names_of,
)
from marl_plugins.plan.flags import (
    OWN_FLAGS,
    Given,
    check_estimator_flags,
    check_flags,
    in_force,
    own_parser,
    recipe_flags,
    split_flags,
)
from marl_plugins.run import Run, engines_only

DEFAULTS = {"algo.advantage.estimator": "reinforce", "vllm.num_engines": 1, "ckpt.best_metric_key": "none"}
"""Where this project's default differs from upstream's."""


CPU_DEFAULTS = {
    "actor.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "ds.attn_implementation": "eager",
    "ds.zero_stage": 0,
}
"""Further defaults on a machine without an accelerator."""


class Builder:
    """Collects the problems while a plan is built."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def attempt(self, build: Callable[[], Any]) -> Any:
        """The result, or None with the problems kept."""
        try:
            return build()
        except ConfigurationError as error:
            self.problems += error.problems
            return None

    def stop_if_wrong(self) -> None:
        if self.problems:
            raise ConfigurationError(list(dict.fromkeys(self.problems)))


def build_run(words: Sequence[str]) -> tuple[Run, argparse.Namespace]:
    """A checked run from the words after `openrlhf train`, and this project's own flags.

    Raises:
        ConfigurationError: Everything that is wrong, at once.
    """
    builder = Builder()
    root = upstream_cli.upstream_root()
    if impossible := releases.refusal(upstream_cli.upstream_version()):
        raise ConfigurationError(impossible)
    own = own_parser()
    command_line = split_flags(words, "command line")
    ours = [f for f in command_line if f.name in OWN_FLAGS]
    theirs = [f for f in command_line if f.name not in OWN_FLAGS]
    options = own.parse_args([w for f in ours for w in f.argv])

    origins = Origins()
    folder = Path()
    recipe: Recipe | None = None
    if options.recipe:
        path = find_recipe(options.recipe)
        folder = path.parent
        recipe, origins = load_recipe(path)
    elif not options.plugin:
        raise ConfigurationError("nothing multi-agent was asked for: give --recipe, --plugin, or both")
    else:
        recipe, folder = implicit_recipe(), data_folder()
    assert recipe is not None
    if options.mapping:
        recipe = _remap(recipe, options.mapping)
        origins.lines = {k: v for k, v in origins.lines.items() if k[:1] != ("mapping",)}

    if recipe.tasks and any(f.name == "data.prompt_dataset" for f in command_line):  # the command line beats the recipe
        recipe = recipe.model_copy(update={"tasks": None})
    names = [n if not n.endswith(".py") or Path(n).is_absolute() else str(folder / n) for n in recipe.plugins]
    plugins = builder.attempt(lambda: Plugins([*names, *options.plugin]))
    if plugins is None:  # the flags of unknown plugins are unknown too
        builder.problems += check_roles(recipe, origins, folder, tool_names=None)
        builder.stop_if_wrong()
    parser = upstream_cli.build_parser(root)
    plugins.options(parser)
    actions = {o[2:]: a for a in parser._actions for o in a.option_strings if o.startswith("--")}

    device = cpu.device()
    defaults = {**DEFAULTS, **(CPU_DEFAULTS if device == "cpu" else {})}
    base = recipe_flags(defaults, lambda _: "default")
    from_recipe = [_beside(f, folder) for f in recipe_flags(recipe.flags, lambda n: origins.where("flags", n))]
    shared_cli = [f for f in theirs if not f.name.startswith("policy.")]
    policy_cli = [f for f in theirs if f.name.startswith("policy.")]
    given = [*from_recipe, *shared_cli]
    builder.problems += check_flags(given, parser, actions, per_policy=False)
    good = [f for f in given if not check_flags([f], parser, actions, per_policy=False)]

    def parse(flags: Iterable[Given]) -> SimpleNamespace:
        return upstream_cli.hierarchize(parser.parse_args([w for f in in_force(flags) for w in f.argv]), root)

    args = parse([*base, *good])
    # `--flag` arguments of a recipe are kept even when the command line repeats them: argparse takes the last one.
    run = Run(recipe, folder, plugins, args, [], {}, device, frozenset(f.name for f in given))
    run.on_command_line = frozenset(f.name for f in shared_cli)
    if options.mapping:
        run.idle = dict.fromkeys(recipe.policies, f"--mapping {options.mapping}")
    if upstream_cli.upstream_version() != releases.TRAINED:
        run.warnings.append(
            f"openrlhf {upstream_cli.upstream_version()} is {releases.standing(upstream_cli.upstream_version())}"
        )
    run.max_steps, run.logical_gpus = options.max_steps, options.logical_gpus
    if run.estimator is not None:
        builder.problems += check_estimator_flags(good, actions, run.estimator)
    tools: set[str] | None = builder.attempt(lambda: tool_names_of(plugins, run))
    builder.problems += check_roles(recipe, origins, folder, tools)
    policies = builder.attempt(lambda: plugins.planned("marl_policies", run=run)) or []
    run.policies = list(policies)
    builder.problems += check_policies(run, recipe, origins)
    named: dict[str, str] = {}

    by_policy: dict[str, list[Given]] = {p.name: [] for p in run.policies}
    refused: dict[str, list[str]] = {}
    for flag in policy_cli:
        _, _, rest = flag.name.partition(".")
        name, _, upstream_name = rest.partition(".")
        if not upstream_name:
            builder.problems.append(
                f"{flag.where}: --{flag.name}: expected --policy.NAME.FLAG, FLAG being one of upstream's"
            )
        elif name not in by_policy:
            builder.problems.append(f"{flag.where}: --{flag.name}: there is no policy {name!r}{nearest(name, by_policy)}")
        else:
            by_policy[name].append(Given(upstream_name, flag.words, flag.where))
    for policy in run.policies:
        own_flags = recipe_flags(policy.flags, lambda n, p=policy: origins.where("policies", p.name, "flags", n))  # type: ignore[misc]
        flags = [*own_flags, *by_policy[policy.name]]
        builder.problems += check_flags(flags, parser, actions, per_policy=True)
        fine = [f for f in flags if not check_flags([f], parser, actions, per_policy=True)]
        if run.estimator is not None:
            builder.problems += check_estimator_flags(fine, actions, run.estimator)
        # the command line beats the recipe; in each of them a policy's own flag beats one for all policies
        policy_args = parse(sorted([*base, *good, *fine], key=lambda f: f.where == "command line"))
        if not any(f.name == "actor.model_name_or_path" for f in fine):
            policy_args.actor.model_name_or_path = policy.model
        problems, warnings = upstream_cli.validate(policy_args, root)
        refused[policy.name] = problems
        if not policy.trainable:
            engines_only(policy_args)
        run.warnings += [w for w in warnings if w not in run.warnings]
        policy_args.ckpt.path = str(Path(args.ckpt.path) / policy.name)
        policy_args.ckpt.output_dir = str(Path(args.ckpt.output_dir) / policy.name)
        policy_args.ckpt.max_num = 10**9  # complete steps are rotated together, after the manifest is in place
        policy_args.logger.wandb.key = policy_args.logger.tensorboard_dir = None  # the controller logs, once
        run.policy_args[policy.name] = policy_args
    builder.problems += name_policies(refused)
    models: dict[str, list[str]] = {}
    for policy in run.policies:
        if policy.name in run.policy_args:
            policy_args = run.policy_args[policy.name]
            named[policy.name] = policy_args.actor.model_name_or_path
            found = {"": model_problem(named[policy.name])}
            if policy_args.critic.model_name_or_path not in (None, named[policy.name]):
                found["--critic.model_name_or_path: "] = model_problem(policy_args.critic.model_name_or_path)
            models[policy.name] = [place + problem for place, problem in found.items() if problem]
    builder.problems += name_policies(models)
    run.policies = [replace(p, model=named.get(p.name, p.model)) for p in run.policies]
    builder.problems += check_numbers(run)
    builder.problems += check_files(run, origins)
    if not builder.problems and not hub_tasks(run):
        builder.problems += builder.attempt(lambda: check_tasks(run)) or []
    if not builder.problems:
        builder.problems += check_workflow(run, tools)
    for problems in builder.attempt(lambda: plugins.planned("marl_configure", run=run)) or []:
        builder.problems += [problems] if isinstance(problems, str) else problems
    builder.stop_if_wrong()
    return run, options


FILES = ("data.prompt_dataset", "eval.dataset", "reward.remote_url")
"""Upstream's flags that may name a file; a recipe's is relative to the recipe, as all its paths are."""


def _beside(flag: Given, folder: Path) -> Given:
    if flag.name not in FILES or len(flag.words) != 1:
        return flag
    name = flag.words[0]
    is_file = name.startswith(".") or Path(name).suffix in (".json", ".jsonl", ".py")
    return replace(flag, words=(str(folder / name),)) if is_file else flag


def data_folder() -> Path:
    """Folder of the one-role recipe that stands in where `--plugin` is given without `--recipe`."""
    return Path(__file__).resolve().parent / "single"


def implicit_recipe() -> Recipe:
    """One role on one policy, from upstream's own data and model flags."""
    return Recipe(name="single", roles={"agent": RoleConfig(prompt="prompt.md")}, workflow="workflow.py")


def _remap(recipe: Recipe, mapping: str) -> Recipe:
    """The recipe with another mapping."""
    if mapping in ("separate", "shared"):
        return recipe.model_copy(update={"mapping": mapping})
    pairs = [part.partition("=") for part in mapping.split(",")]
    if any(not role or not equals or not policy for role, equals, policy in pairs):
        raise ConfigurationError(f"--mapping {mapping}: expected separate, shared, or role=policy,role=policy")
    return recipe.model_copy(update={"mapping": {role: policy for role, _, policy in pairs}})
