"""Turns a command line into a checked plan: everything that can be known before anything starts,
and all that is wrong with it.

    words -> recipe -> plugins -> flags -> policies -> run -> checks -> plan

`build_plan` has one step per arrow; problems are collected and reported together.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import line_of, present
from marl_plugins.core.plugin_names import BUILTINS
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Problem, at, problem_of, with_relative_paths
from marl_plugins.core.recipe.kept_models import place_of
from marl_plugins.core.recipe.recipe_yaml import Origins, RecipeTree, read_recipe
from marl_plugins.core.recipe.schema import Recipe, Sections, find_recipe
from marl_plugins.core.run import Run
from marl_plugins.engine.hosts import cpu, releases, upstream_cli
from marl_plugins.engine.manager import Plugins, claims_of
from marl_plugins.engine.plan.calls import check_calls
from marl_plugins.engine.plan.checks.asynchronous import (
    check_async,
    check_batches,
    check_partial,
    check_queue,
)
from marl_plugins.engine.plan.checks.numbers import check_numbers, with_policies_named
from marl_plugins.engine.plan.checks.policies import (
    check_adapters,
    check_external,
    check_followers,
    check_policies,
)
from marl_plugins.engine.plan.checks.roles import check_roles
from marl_plugins.engine.plan.files import check_files, check_workflow_file
from marl_plugins.engine.plan.flags import (
    OWN_FLAGS,
    Flags,
    GivenFlag,
    own_options,
    recipe_flags,
    split_flags,
)
from marl_plugins.engine.plan.lengths import Lengths, check_lengths
from marl_plugins.engine.plan.models import check_models, positions_of
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.problems import Problems
from marl_plugins.engine.plan.resolve_plugins import (
    estimator_of,
    is_from_plugin,
    policies_of,
    processes_of,
    tools_of,
    wrong_answer,
)
from marl_plugins.engine.plan.sections import load_recipe, sections_of
from marl_plugins.engine.plan.tasks import check_tasks, task_warnings
from marl_plugins.engine.plan.templates import check_templates
from marl_plugins.engine.plan.without import kept_plugins, without

SLOW_SECONDS = 10.0
"""Seconds of planning after which the user's line that is executed is named, and again after as
many."""


@dataclass(frozen=True)
class PlanRequest:
    """A command line with its recipe, before anything of it is checked against plugins and
    upstream.

    Args:
        options: This project's own flags.
        flags: All others on the command line.
        plugins: Those that the recipe and the command line name, the recipe's first.
        recipe, sections, origins, folder: The recipe, what its plugins read in it, where its keys
            stand, and where its files are.
    """

    options: argparse.Namespace
    flags: Sequence[GivenFlag]
    plugins: Plugins
    recipe: Recipe
    sections: Sections
    origins: Origins
    folder: Path

    @property
    def without(self) -> dict[str, str]:
        """Policies of the recipe that may be left without a role, and the flag for which they
        are."""
        flags = [] if self.options.mapping is None else [f"--mapping {self.options.mapping}"]
        flags += [f"--without {name}" for name in self.options.without]
        return dict.fromkeys(self.recipe.policies, " ".join(flags)) if flags else {}


@contextmanager
def _naming_files() -> Iterator[None]:
    """A file that is there and cannot be read, wherever in the plan."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise ConfigurationError(
            Problem(
                "files.unreadable", at(file=error.filename), f"cannot be read: {error.strerror}"
            )
        ) from error


@contextmanager
def _naming_what_is_slow() -> Iterator[None]:
    """Every so often the user's line that is executed: code that never ends, when it is imported or
    asked for tasks, is silent."""
    planning, done = threading.current_thread(), threading.Event()

    def watch() -> None:
        while not done.wait(SLOW_SECONDS):
            if place := line_of(planning):
                text = f"still planning: {place} has not ended yet (Ctrl-C ends it)"
                print(with_relative_paths(text), file=sys.stderr)

    threading.Thread(target=watch, name="still planning", daemon=True).start()
    try:
        yield
    finally:
        done.set()


@_naming_files()
@_naming_what_is_slow()
def build_plan(words: Sequence[str]) -> Plan:
    """Returns a checked plan from the words after `openrlhf train`.

    Raises:
        ConfigurationError: Everything that is wrong with keys and flags, at once; of code, which
            is tried with right ones only, at once too.
    """
    if impossible := releases.refusal(upstream_cli.upstream_version()):
        raise ConfigurationError(impossible)
    problems = Problems()
    request = read_request(words, problems)
    plugins = request.plugins
    flags = read_flags(request, problems)
    draft = draft_run(request, flags)
    if draft.estimator is not None:
        flags.check_estimator(draft.estimator)
    tools = problems.attempt(lambda: tools_of(plugins, draft))
    names = None if tools is None else set(tools)
    problems += check_roles(
        request.recipe, request.origins, request.folder, names, sections_of(plugins)
    )
    problems += check_calls(request.recipe, tools or {}, sent=not request.recipe.workflow)
    run = with_policies(replace(draft, tools=tools or {}), request, flags, problems)
    plan = Plan(run, plugins, request.options)
    problems += check_adapters(run)
    trees = request.options.sequences == "trees"
    problems += [*check_numbers(run, trees), *check_async(run), *check_batches(plugins, run)]
    problems += problems.attempt(lambda: check_files(plan, request.origins)) or []
    problems += [] if tools is None else check_workflow_file(plan, request.origins)
    problems += run.processes.problems(run) if run.policies and run.processes else []
    if owners := plugins.owners("marl_estimator"):
        estimator = problems.attempt(lambda: estimator_of(plan))
        if estimator is not None and not is_from_plugin(estimator):
            got = f"gave nothing, so {run.args.algo.advantage.estimator} trains"
            where, fix = at(plugin=owners, hook="marl_estimator"), "does it end with `return`?"
            problems.append(Problem("plugin.no_estimator", where, got, fix=fix, severity="warning"))
    if not problems.errors:
        problems += problems.attempt(lambda: check_tasks(plan)) or []
        problems += (
            []
            if problems.errors
            else [*task_warnings(plan), *check_queue(run, plan.counted.get("steps"))]
        )
    if not problems.errors:
        collect(plan.plugins, problems, "marl_rehearse", plan=plan)
    if not problems.errors:
        problems += check_templates(run)
        lengths = problems.attempt(lambda: check_lengths(plan)) or Lengths()
        problems += lengths.problems
        plan = replace(plan, lengths=lengths.roles)
    configure_plugins(plan, problems)
    problems += check_partial(run)
    typed = {flag.name for flag in request.flags}
    typed |= {name for name, value in request.recipe.flags.items() if value is False}
    placed = problems.placed(request.origins, typed, [policy.name for policy in run.policies])
    if errors := placed.errors:
        raise ConfigurationError(errors)
    return replace(plan, run=replace(run, warnings=(*run.warnings, *placed.warnings)))


def draft_plan(words: Sequence[str], plugins: Plugins) -> Plan:
    """Returns the plan before its policies are known, with its flags as far as they can be read:
    enough to rehearse it.

    Raises:
        ConfigurationError: Upstream's flags cannot be read, or a plugin's tools are wrong.
    """
    request = read_request(words, Problems(), plugins)
    run = draft_run(request, read_flags(request, Problems()))
    return Plan(replace(run, tools=tools_of(plugins, run)), plugins, request.options)


def read_request(
    words: Sequence[str], problems: Problems, plugins: Plugins | None = None
) -> PlanRequest:
    """Returns the command line, the recipe that it names, and the plugins that both name.

    Args:
        problems: Those of the command line are added.
        plugins: Take part in place of those that are named.

    Raises:
        ConfigurationError: There is no recipe, it is wrong, or a plugin cannot be used.
    """
    command_line = split_flags(words)
    options = own_options([f for f in command_line if f.name in OWN_FLAGS], problems)
    if options.recipe is not None:
        tree = without(read_recipe(find_recipe(options.recipe)), options.without)
    elif options.plugin:
        tree = without(implicit_recipe(), options.without)
    else:
        got, fix = "nothing multi-agent was asked for", "give --recipe, --plugin, or both"
        raise ConfigurationError(problems or Problem("flags.nothing", got=got, fix=fix))
    origins, folder = tree.origins, tree.path.parent
    if plugins is None:
        plugins = problems.attempt(lambda: Plugins([*tree.plugins, *options.plugin]))
    if plugins is None:  # whose keys and flags are unknown too
        raise ConfigurationError(problems.errors)
    flags = [f for f in command_line if f.name not in OWN_FLAGS]
    loaded = problems.attempt(lambda: load_recipe(tree, plugins))
    if loaded is None:  # what can be known of the flags all the same
        recipe = Recipe.model_construct(name="unknown", roles={}, flags=tree.flags)
        request = PlanRequest(options, flags, plugins, recipe, {}, origins, folder)
        problems.attempt(lambda: read_flags(request, problems))
        raise ConfigurationError(problems.errors)
    recipe, sections = loaded
    if options.mapping is not None:
        recipe = _remap(recipe, options.mapping)
        origins.lines = {k: v for k, v in origins.lines.items() if k[:1] != ("mapping",)}
    # the command line beats the recipe
    if recipe.tasks and any(f.name == "data.prompt_dataset" for f in command_line):
        recipe = recipe.model_copy(update={"tasks": None})
    return PlanRequest(options, flags, plugins, recipe, sections, origins, folder)


def read_flags(request: PlanRequest, problems: Problems) -> Flags:
    """Returns all flags, upstream's and the plugins', each checked."""
    parser = upstream_cli.build_parser(upstream_cli.upstream_root())
    request.plugins.options(parser)
    in_recipe = recipe_flags(
        request.recipe.flags, lambda name: request.origins.where("flags", name)
    )
    output = f"runs/{request.recipe.name}" if request.options.recipe else None
    active = (*present(BUILTINS), *request.plugins.names)
    trees = request.options.sequences == "trees"
    folder, device = request.folder, cpu.device()
    return Flags(parser, request.flags, in_recipe, folder, device, problems, output, active, trees)


def draft_run(request: PlanRequest, flags: Flags) -> Run:
    """Returns the run before its policies are known."""
    args, plugins = flags.args(), request.plugins
    version = upstream_cli.upstream_version()
    got = f"openrlhf {version} is {releases.standing(version)}"
    other_release = (
        []
        if version == releases.TRAINED
        else [Problem("upstream.release", got=got, severity="warning")]
    )
    return Run(
        recipe=request.recipe,
        folder=request.folder,
        args=args,
        device=cpu.device(),
        plugins=plugins.names,
        sections=request.sections,
        estimator=None if plugins.claims("marl_estimator") else args.algo.advantage.estimator,
        given=flags.given,
        on_command_line=flags.on_command_line,
        claims=claims_of(plugins),
        warnings=tuple(other_release),
        max_steps=request.options.max_steps,
        max_idle_steps=request.options.max_idle_steps,
        max_lag=request.options.max_lag,
    )


def with_policies(run: Run, request: PlanRequest, flags: Flags, problems: Problems) -> Run:
    """Returns the run with its policies, their flags and models."""
    answered = problems.attempt(lambda: policies_of(request.plugins, run)) or []
    policies = [p for p in answered if not p.excluded_by]
    without = request.without | {p.name: p.excluded_by for p in answered if p.excluded_by}
    problems += check_policies(run, policies, without, request.origins)
    problems += check_followers(run, policies)
    problems += check_external(run, policies)
    names = [p.name for p in policies]
    idle = [
        Problem(
            "policies.idle",
            got=f"policy {name!r} of the recipe plays no role with {without[name]}",
            severity="warning",
        )
        for name in run.recipe.policies
        if name in without and name not in names
    ]
    own = flags.by_policy(policies, request.origins, run.estimator)
    policy_args: dict[str, SimpleNamespace] = {}
    refused: dict[str, list[Problem]] = {}
    printed: list[Problem] = []
    # those last, because they have another one's model
    for policy in sorted(policies, key=lambda p: bool(p.follows)):
        args = flags.policy_args(own[policy.name])
        problems += _model_flags(policy, own[policy.name])
        if policy.follows in policy_args:
            args.actor.model_name_or_path = policy_args[policy.follows].actor.model_name_or_path
        elif not any(flag.name == "actor.model_name_or_path" for flag in own[policy.name]):
            args.actor.model_name_or_path = policy.model
        for part in (args.actor, args.critic):
            part.model_name_or_path = part.model_name_or_path and place_of(part.model_name_or_path)
        attention = args.ds.attn_implementation
        refused[policy.name], warnings = upstream_cli.validate(args, flags.root)
        # where packing does without flash attention, on which upstream insists
        if run.device == "cpu":
            args.ds.attn_implementation = attention
            warnings = [warning for warning in warnings if "flash_attention" not in warning.got]
        printed += warnings
        if not policy.trainable:
            use_engines_only(args)
        if policy.served:
            args.vllm.num_engines = 0
            if not any(flag.name == "data.max_len" for flag in own[policy.name]):
                args.data.max_len = positions_of(policy.model)
        _settle_folders(args, run.args, policy.name)
        policy_args[policy.name] = args
    problems += with_policies_named(refused)
    problems += with_policies_named(
        {p.name: model_problems(p, policy_args[p.name], run, request) for p in policies}
    )
    known = replace(
        run,
        policies=tuple(
            replace(
                p,
                model=policy_args[p.name].actor.model_name_or_path,
                template={**p.template, **flags.templates.get(p.name, {})},
            )
            for p in policies
        ),
        policy_args=policy_args,
        warnings=tuple(dict.fromkeys([*run.warnings, *idle, *printed])),
    )
    return replace(known, processes=problems.attempt(lambda: processes_of(request.plugins, known)))


def use_engines_only(args: SimpleNamespace) -> None:
    """Sets the flags of a policy that is not trained: its engines have their devices to themselves,
    and need not sleep."""
    args.train.colocate_all = args.vllm.enable_sleep = False


def _model_flags(policy: Policy, own: Sequence[GivenFlag]) -> list[Problem]:
    """The flags that name a model of its own for a policy that has another one's, as problems."""
    whose = f"it follows {policy.follows!r} and has its model"
    if policy.served:
        whose = f"its model is {policy.served.name!r} behind an endpoint"
    return [
        Problem(
            "policies.model_of_follower",
            at(line=flag.where, policy=policy.name, flag=flag.name),
            whose,
            fix="remove the flag",
        )
        for flag in own
        if flag.name == "actor.model_name_or_path" and (policy.follows or policy.served)
    ]


def _settle_folders(args: SimpleNamespace, shared: SimpleNamespace, policy: str) -> None:
    """A policy's own folders, absolute because Ray's workers have another working folder; and what
    is done for all at once."""
    args.ckpt.path = str((Path(shared.ckpt.path) / policy).absolute())
    args.ckpt.output_dir = str((Path(shared.ckpt.output_dir) / policy).absolute())
    args.ckpt.max_num = 10**9  # complete steps are rotated together, after the manifest is in place
    args.logger.wandb.key = args.logger.tensorboard_dir = None  # the controller logs, once


def model_problems(
    policy: Policy, args: SimpleNamespace, run: Run, request: PlanRequest
) -> list[Problem]:
    """Returns what is wrong with the models of a policy and its critic, with the line of the recipe
    that names its model."""
    origins = request.origins
    own = (
        args.actor.model_name_or_path == place_of(policy.model)
        and "actor.model_name_or_path" not in run.on_command_line
    )
    keys = (("policies", policy.name, "model"), ("model",), ("flags", "actor.model_name_or_path"))
    key = next((key for key in keys if key in origins.lines), None)
    line = origins.where(*key) if own and key and policy.model else ""
    problems = check_models(args, request.options.trust_remote_code)
    return [problem if problem.names("flag") else problem.within(line=line) for problem in problems]


def configure_plugins(plan: Plan, problems: Problems) -> None:
    """Adds what the plugins refuse, and their warnings."""
    elsewhere = Problems()  # what is wrong with the estimator is said by others
    run = (
        plan.run
        if problems.errors
        else replace(plan.run, advantages=elsewhere.attempt(lambda: estimator_of(plan)))
    )
    collect(plan.plugins, problems, "marl_configure", run=run)


def collect(plugins: Plugins, problems: Problems, hook: str, **arguments: Any) -> None:
    """Adds the problems that the plugins return from a hook."""
    answers = problems.attempt(lambda: plugins.call_while_planning(hook, **arguments)) or []
    for answer in answers:
        listed = [answer] if isinstance(answer, Problem | str) else answer
        if isinstance(listed, list | tuple) and all(
            isinstance(problem, Problem | str) for problem in listed
        ):
            problems += map(problem_of, listed)
        else:
            expected = "a list of Problem or of texts, or None"
            problems.append(wrong_answer(plugins, hook, f"{answer!r:.80}", expected))


def implicit_recipe() -> RecipeTree:
    """Returns one role on one policy, from upstream's own data and model flags: used where
    `--plugin` is given without `--recipe`."""
    values = {
        "name": "single",
        "roles": {"agent": {"prompt": "prompt.md"}},
        "workflow": "workflow.py",
    }
    return RecipeTree(Path(__file__).resolve().parent / "single" / "recipe.yaml", values, Origins())


def _remap(recipe: Recipe, mapping: str) -> Recipe:
    """The recipe with another mapping."""
    if mapping in ("separate", "shared"):
        return recipe.model_copy(update={"mapping": mapping})
    pairs = [part.partition("=") for part in mapping.split(",")]
    if any(
        not role or not equals or not all(policies.split("+")) for role, equals, policies in pairs
    ):
        raise ConfigurationError(
            Problem(
                "flags.mapping",
                at(flag="mapping"),
                f"{mapping}: expected separate, shared, or role=policy,role=policy+policy",
            )
        )
    named = {
        role: policies.split("+") if "+" in policies else policies for role, _, policies in pairs
    }
    return recipe.model_copy(update={"mapping": named})


def mentioned_plugins(words: Sequence[str]) -> Plugins:
    """Returns the plugins that a command line and its recipe name, whatever else is wrong with it:
    for `--help`."""
    flags = [f for f in split_flags([w for w in words if w not in ("--help", "-h")]) if f.words]
    recipes: Iterable[Path] = [find_recipe(f.words[0]) for f in flags if f.name == "recipe"]
    left = [f.words[0] for f in flags if f.name == "without"]
    names = [name for path in recipes for name in kept_plugins(read_recipe(path), left)]
    return Plugins([*names, *(f.words[0] for f in flags if f.name == "plugin")])
