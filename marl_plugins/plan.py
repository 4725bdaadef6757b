"""From a command line to a checked plan: everything that can be known before anything starts, and all that is wrong with it.

Precedence: command line, then recipe, then the defaults below, then upstream's. Each flag is first parsed alone, so that
every wrong one is named together with where it stands; then all are parsed together, once for the run and once per policy.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import json
import os
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from marl_plugins.config import Origins, PolicyConfig, Recipe, RoleConfig, find_recipe, load_recipe
from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.hosts import cpu, upstream_cli
from marl_plugins.hosts.flags import FLAGS
from marl_plugins.manager import Plugins, load_file

DEFAULTS = {"algo.advantage.estimator": "reinforce", "vllm.num_engines": 1, "ckpt.best_metric_key": "none"}
"""Where this project's default differs from upstream's."""
CPU_DEFAULTS = {
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "vllm.sync_backend": "gloo",
    "vllm.enforce_eager": True,
    "ds.attn_implementation": "eager",
    "ds.zero_stage": 0,
}
"""Further defaults on a machine without an accelerator."""


@dataclass(frozen=True)
class Policy:
    """A model with weights of its own.

    Args:
        name: Also the name of its folders and metrics.
        model: Folder, hub name or `tiny`.
        base, adapter: For adapters on one base; unused until adapters are supported.
        trainable: Whether it is updated.
        flags: Upstream flags that differ for this policy, by name.
    """

    name: str
    model: str
    base: str | None = None
    adapter: str | None = None
    trainable: bool = True
    flags: Mapping[str, Any] = field(default_factory=dict)


@dataclass
class Run:
    """Everything a plugin may know of the run it takes part in.

    Args:
        recipe: The checked recipe.
        folder: The recipe's folder; its files are relative to it.
        plugins: The active plugins.
        args: All flags for the whole run, nested as upstream has them (`args.actor.adam.lr`), the plugins' included.
        policies: In the order of their first role.
        policy_args: The same for each policy, with its own flags applied.
        device: `cpu` or `cuda`.
        given: Flags that were given by name, on the command line or in the recipe.
        warnings: What upstream's validation had to say.
    """

    recipe: Recipe
    folder: Path
    plugins: Plugins
    args: SimpleNamespace
    policies: list[Policy]
    policy_args: dict[str, SimpleNamespace]
    device: str
    given: frozenset[str]
    warnings: list[str] = field(default_factory=list)
    max_steps: int | None = None
    logical_gpus: int | None = None

    def role(self, name: str) -> RoleConfig:
        return self.recipe.roles[name]

    @property
    def output(self) -> Path:
        """Folder of the records and of the final weights."""
        return Path(self.args.ckpt.output_dir)

    @property
    def optimiser_steps(self) -> int:
        """K of a full batch: trajectories of a step over trajectories per optimiser step (design: the trajectory is the unit)."""
        return int(self.trajectories // self.args.train.batch_size)

    @property
    def trajectories(self) -> int:
        """Trajectories of a full training step."""
        return int(self.args.rollout.batch_size * self.args.rollout.n_samples_per_prompt)

    @cached_property
    def workflow_module(self) -> ModuleType:
        return self._module(self.recipe.workflow, "workflow")

    @cached_property
    def grader_module(self) -> ModuleType | None:
        return self._module(self.recipe.grader, "grader") if self.recipe.grader else None

    @cached_property
    def tasks_module(self) -> ModuleType | None:
        return self._module(self.recipe.tasks, "tasks") if self.recipe.tasks else None

    def _module(self, file: str, kind: str) -> ModuleType:
        """Recipe code is loaded by path under a stable module name; only the package's own types cross processes."""
        return load_file(self.folder / file, f"marl_recipe_{self.recipe.name}_{kind}")

    def fingerprint(self) -> dict[str, Any]:
        """What a resumed run has to have in common with the one it continues."""
        return {
            "roles": {r: self.recipe.policy_of(r) for r in self.recipe.roles},
            "policies": {p.name: {"model": p.model, "trainable": p.trainable} for p in self.policies},
            "seed": self.args.train.seed,
            "rollout.batch_size": self.args.rollout.batch_size,
            "rollout.n_samples_per_prompt": self.args.rollout.n_samples_per_prompt,
            "train.batch_size": self.args.train.batch_size,
            "train.num_episodes": self.args.train.num_episodes,
            "plugins": self.plugins.versions(),
        }


@dataclass(frozen=True)
class Given:
    """A flag as it was given: its name without dashes, its values as words, and where it stands."""

    name: str
    words: tuple[str, ...]
    where: str

    @property
    def argv(self) -> list[str]:
        return [f"--{self.name}", *self.words]


OWN_FLAGS = ("recipe", "plugin", "mapping", "max_steps", "logical_gpus", "dry-run", "debug", "json")


def own_parser() -> upstream_cli.Parser:
    """The flags of `openrlhf train` that are not upstream's."""
    parser = upstream_cli.Parser(prog="openrlhf train", add_help=False, allow_abbrev=False)
    ours = parser.add_argument_group("multi-agent training")
    ours.add_argument("--recipe", metavar="PATH", help="a recipe's YAML file, its folder, or the name of a shipped recipe")
    ours.add_argument(
        "--plugin",
        metavar="NAME",
        action="append",
        default=[],
        help="take a plugin in: dotted name, entry-point name or .py file; may be given several times, order counts",
    )
    ours.add_argument(
        "--mapping", metavar="MAP", help="separate, shared, or role=policy,role=policy; overrides the recipe's"
    )
    ours.add_argument("--max_steps", type=int, metavar="N", help="end after N training steps (rollout, update and sync)")
    ours.add_argument(
        "--logical_gpus", type=int, metavar="N", help="on a machine without GPUs: so many logical ones; default: as needed"
    )
    ours.add_argument("--dry-run", action="store_true", help="check everything, print the plan, start nothing")
    ours.add_argument("--debug", action="store_true", help="show tracebacks and the output of all processes")
    ours.add_argument("--json", action="store_true", help="print JSON instead of tables")
    return parser


def split_flags(words: Sequence[str], where: str) -> list[Given]:
    """A command line cut into flags with their values; `--flag=value` likewise.

    Raises:
        ConfigurationError: It begins with something that is not a flag.
    """
    flags: list[Given] = []
    for word in words:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            flags.append(Given(name, (value,) if equals else (), where))
        elif not flags:
            raise ConfigurationError(f"{where}: expected a flag (--name), got {word!r}")
        else:
            last = flags.pop()
            flags.append(Given(last.name, (*last.words, word), where))
    return flags


def recipe_flags(flags: Mapping[str, Any], where: Callable[[str], str]) -> list[Given]:
    """A recipe's `flags:` as if they stood on a command line: true is a bare flag, false leaves it out, lists are several words."""
    given = []
    for name, value in flags.items():
        if value is False or value is None:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        given.append(Given(name, tuple(str(v) for v in values), where(name)))
    return given


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

    names = [n if not n.endswith(".py") or Path(n).is_absolute() else str(folder / n) for n in recipe.plugins]
    plugins = builder.attempt(lambda: Plugins([*names, *options.plugin]))
    if plugins is None:  # the flags of unknown plugins are unknown too
        builder.problems += _check_roles(recipe, origins, folder, tool_names=None)
        builder.stop_if_wrong()
    parser = upstream_cli.build_parser(root)
    plugins.hook.marl_options(parser=parser)
    actions = {o[2:]: a for a in parser._actions for o in a.option_strings if o.startswith("--")}

    device = cpu.device()
    defaults = {**DEFAULTS, **(CPU_DEFAULTS if device == "cpu" else {})}
    base = recipe_flags(defaults, lambda _: "default")
    from_recipe = recipe_flags(recipe.flags, lambda n: origins.where("flags", n))
    shared_cli = [f for f in theirs if not f.name.startswith("policy.")]
    policy_cli = [f for f in theirs if f.name.startswith("policy.")]
    given = [*from_recipe, *shared_cli]
    builder.problems += _check_flags(given, parser, actions, per_policy=False)
    good = [f for f in given if not _check_flags([f], parser, actions, per_policy=False)]

    def parse(flags: Iterable[Given]) -> SimpleNamespace:
        return upstream_cli.hierarchize(parser.parse_args([w for f in flags for w in f.argv]), root)

    args = parse([*base, *good])
    # `--flag` arguments of a recipe are kept even when the command line repeats them: argparse takes the last one.
    run = Run(recipe, folder, plugins, args, [], {}, device, frozenset(f.name for f in given))
    run.max_steps, run.logical_gpus = options.max_steps, options.logical_gpus
    builder.problems += _check_roles(recipe, origins, folder, _tool_names(plugins, run))
    policies = builder.attempt(lambda: plugins.hook.marl_policies(run=run)) or []
    run.policies = list(policies)
    builder.problems += _check_policies(run, recipe, origins)

    by_policy: dict[str, list[Given]] = {p.name: [] for p in run.policies}
    refused: dict[str, list[str]] = {}
    for flag in policy_cli:
        _, _, rest = flag.name.partition(".")
        name, _, upstream_name = rest.partition(".")
        if name not in by_policy:
            builder.problems.append(f"{flag.where}: --{flag.name}: there is no policy {name!r}{nearest(name, by_policy)}")
        else:
            by_policy[name].append(Given(upstream_name, flag.words, flag.where))
    for policy in run.policies:
        own_flags = recipe_flags(policy.flags, lambda n, p=policy: origins.where("policies", p.name, "flags", n))  # type: ignore[misc]
        flags = [*own_flags, *by_policy[policy.name]]
        builder.problems += _check_flags(flags, parser, actions, per_policy=True)
        fine = [f for f in flags if not _check_flags([f], parser, actions, per_policy=True)]
        # a policy's own flag wins over one for all policies, wherever either stands
        policy_args = parse([*base, *good, *fine])
        policy_args.actor.model_name_or_path = policy.model
        problems, warnings = upstream_cli.validate(policy_args, root)
        refused[policy.name] = problems
        run.warnings += [w for w in warnings if w not in run.warnings]
        policy_args.ckpt.path = str(Path(args.ckpt.path) / policy.name)
        policy_args.ckpt.output_dir = str(Path(args.ckpt.output_dir) / policy.name)
        policy_args.ckpt.max_num = 10**9  # complete steps are rotated together, after the manifest is in place
        policy_args.logger.wandb.key = policy_args.logger.tensorboard_dir = None  # the controller logs, once
        run.policy_args[policy.name] = policy_args
    builder.problems += _name_policies(refused)
    builder.problems += _check_numbers(run)
    builder.problems += _check_files(run, origins)
    for problems in plugins.hook.marl_configure(run=run):
        builder.problems += problems
    builder.stop_if_wrong()
    return run, options


def data_folder() -> Path:
    """Folder of the one-role recipe that stands in where `--plugin` is given without `--recipe`."""
    return Path(__file__).resolve().parent / "core" / "single"


def implicit_recipe() -> Recipe:
    """One role on one policy, from upstream's own data and model flags."""
    return Recipe(name="single", roles={"agent": RoleConfig(prompt="prompt.md")}, workflow="workflow.py")


def _remap(recipe: Recipe, mapping: str) -> Recipe:
    if mapping in ("separate", "shared"):
        return recipe.model_copy(update={"mapping": mapping})
    pairs = [part.partition("=") for part in mapping.split(",")]
    if any(not role or not equals or not policy for role, equals, policy in pairs):
        raise ConfigurationError(f"--mapping {mapping}: expected separate, shared, or role=policy,role=policy")
    return recipe.model_copy(update={"mapping": {role: policy for role, _, policy in pairs}})


def _tool_names(plugins: Plugins, run: Run) -> set[str] | None:
    return {tool.name for tools in plugins.hook.marl_tools(run=run) for tool in tools}


def _check_roles(recipe: Recipe, origins: Origins, folder: Path, tool_names: set[str] | None) -> list[str]:
    problems = []
    if isinstance(recipe.mapping, dict):
        for role in recipe.roles.keys() - recipe.mapping.keys():
            problems.append(f"{origins.where('mapping')}: role {role!r} is mapped to no policy")
        for role in recipe.mapping.keys() - recipe.roles.keys():
            problems.append(
                f"{origins.where('mapping', role)}: mapping: there is no role {role!r}{nearest(role, recipe.roles)}"
            )
    for name, config in recipe.roles.items():
        for key, file in (("prompt", config.prompt), ("system", config.system)):
            if file is None:
                continue
            where = origins.where("roles", name, key) if origins.lines else str(folder / file)
            try:
                text = (folder / file).read_text(encoding="utf-8")
                list(string.Formatter().parse(text))
            except OSError as error:
                problems.append(f"{where}: roles.{name}.{key}: cannot read {folder / file}: {error.strerror}")
            except ValueError as error:
                problems.append(f"{where}: roles.{name}.{key}: {folder / file}: {error}; write {{{{ and }}}} for braces")
        for tool in config.tools:
            if tool_names is not None and tool not in tool_names:
                problems.append(
                    f"{origins.where('roles', name, 'tools')}: there is no tool {tool!r}{nearest(tool, tool_names)}"
                )
        if config.max_turns > 1 and not config.tools:
            problems.append(
                f"{origins.where('roles', name, 'max_turns')}: role {name!r} has {config.max_turns} turns and no tools; "
                "only a tool's answer starts another turn"
            )
    return problems


def _check_policies(run: Run, recipe: Recipe, origins: Origins) -> list[str]:
    problems = []
    names = [p.name for p in run.policies]
    for name in sorted({n for n in names if names.count(n) > 1}):
        problems.append(f"two policies are called {name!r}")
    for role in recipe.roles:
        if isinstance(recipe.mapping, dict) and role not in recipe.mapping:
            continue  # said already
        policy = recipe.policy_of(role)
        if run.policies and policy not in names:
            problems.append(f"role {role!r} is mapped to policy {policy!r}, which does not exist{nearest(policy, names)}")
    for name in recipe.policies:
        if name not in names:
            problems.append(
                f"{origins.where('policies', name)}: no role is mapped to policy {name!r}{nearest(name, names)}"
            )
    for p in run.policies:
        problem = model_problem(p.model)
        if problem:
            problems.append(f"policy {p.name!r}: {problem}")
    if run.policies and not any(p.trainable for p in run.policies):
        problems.append("every policy is frozen (trainable: false); at least one must be trained")
    return problems


def model_problem(model: str) -> str | None:
    """What is wrong with a model's name as far as can be seen without loading it."""
    if not model:
        return "it has no model: give `model:` in the recipe or --actor.model_name_or_path"
    if model.partition(":")[0] == "tiny":
        return None
    path = Path(model)
    if not path.exists():
        looks_local = model.startswith((".", "/", "~")) or model.count("/") != 1
        if looks_local:
            return f"model {model!r} is neither a folder that exists nor a hub name (owner/name)"
        return None
    if not path.is_dir():
        return f"model {model!r} is a file; a folder with config.json, weights and tokenizer is expected"
    if not (path / "config.json").is_file():
        return f"model folder {model} has no config.json"
    tokenizer = path / "tokenizer_config.json"
    if not tokenizer.is_file():
        return f"model folder {model} has no tokenizer_config.json"
    templates = [path / "chat_template.jinja", path / "chat_template.json"]
    if not any(t.is_file() for t in templates):
        try:
            has_template = bool(json.loads(tokenizer.read_text(encoding="utf-8")).get("chat_template"))
        except ValueError:
            return f"{tokenizer} is not JSON"
        if not has_template:
            return (
                f"the tokenizer of model folder {model} has no chat template (chat_template.jinja, or `chat_template` in "
                "tokenizer_config.json); use an instruction-tuned model or add one"
            )
    return None


def _check_flags(
    flags: Iterable[Given], parser: argparse.ArgumentParser, actions: Mapping[str, argparse.Action], per_policy: bool
) -> list[str]:
    problems = []
    for flag in flags:
        if flag.name not in actions:
            problems.append(f"{flag.where}: unknown flag --{flag.name}{nearest(flag.name, actions)}")
            continue
        entry = FLAGS.get(flag.name)
        if entry and entry.status == "refused" and not _is_default(flag, actions[flag.name]):
            problems.append(f"{flag.where}: --{flag.name} cannot be used: {entry.note}")
        elif entry and entry.status == "replaced":
            problems.append(f"{flag.where}: --{flag.name} has no effect here: replaced {entry.note}")
        elif per_policy and (entry is None or entry.status != "policy"):
            problems.append(f"{flag.where}: --{flag.name} holds for the whole run and cannot differ per policy")
        else:
            try:
                parser.parse_args(flag.argv)
            except ConfigurationError as error:
                problems += [f"{flag.where}: {p}" for p in error.problems]
    return problems


def _is_default(flag: Given, action: argparse.Action) -> bool:
    return len(flag.words) == 1 and str(action.default) == flag.words[0]


def _check_numbers(run: Run) -> list[str]:
    """Batch arithmetic and the like."""
    args, problems = run.args, []
    if args.algo.advantage.estimator != "reinforce" and not run.plugins.claims("marl_estimator"):
        problems.append(
            f"--algo.advantage.estimator {args.algo.advantage.estimator} is not supported yet; use reinforce (REINFORCE++), "
            "or a plugin that implements marl_estimator"
        )
    for name, value in (
        ("rollout.batch_size", args.rollout.batch_size),
        ("rollout.n_samples_per_prompt", args.rollout.n_samples_per_prompt),
        ("train.batch_size", args.train.batch_size),
        ("train.num_episodes", args.train.num_episodes),
    ):
        if value < 1:
            problems.append(f"--{name} is {value}; it must be at least 1")
            return problems
    if run.trajectories % args.train.batch_size:
        problems.append(
            f"a step has {run.trajectories} trajectories (--rollout.batch_size {args.rollout.batch_size} x "
            f"--rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt}), which --train.batch_size "
            f"{args.train.batch_size} (trajectories per optimiser step) does not divide"
        )
    by_policy: dict[str, list[str]] = {}
    for name, a in run.policy_args.items():
        mine = by_policy.setdefault(name, [])
        if a.train.micro_batch_size < 1 or a.rollout.micro_batch_size < 1:
            mine.append("--train.micro_batch_size and --rollout.micro_batch_size must be at least 1")
        if not a.vllm.num_engines or a.vllm.num_engines < 1:
            mine.append(f"--vllm.num_engines is {a.vllm.num_engines}; every policy needs at least one engine")
        if a.rollout.max_new_tokens is not None and a.rollout.max_new_tokens >= a.data.max_len:
            mine.append(
                f"--rollout.max_new_tokens {a.rollout.max_new_tokens} leaves no room for a prompt in --data.max_len "
                f"{a.data.max_len}"
            )
        if run.device == "cpu" and a.ds.zero_stage == 3:
            mine.append("--ds.zero_stage 3 is refused on CPU: it gave NaN with two ranks in one of four runs")
        if run.device == "cpu" and a.ds.attn_implementation.startswith("flash"):
            mine.append(f"--ds.attn_implementation {a.ds.attn_implementation} needs a GPU; use eager or sdpa")
    problems += _name_policies(by_policy)
    if run.max_steps is not None and run.max_steps < 1:
        problems.append(f"--max_steps is {run.max_steps}; it must be at least 1")
    if run.logical_gpus is not None and run.device != "cpu":
        problems.append("--logical_gpus is for machines without GPUs")
    elif run.logical_gpus is not None and run.policy_args and run.logical_gpus < sum(needed_devices(run).values()):
        parts = ", ".join(f"{name} {count}" for name, count in needed_devices(run).items())
        problems.append(
            f"--logical_gpus {run.logical_gpus}: the plan needs {sum(needed_devices(run).values())} ({parts}); use fewer "
            "engines (--vllm.num_engines), fewer ranks (--actor.num_gpus_per_node) or a shared mapping (--mapping shared)"
        )
    remote = args.reward.remote_url
    if remote and not (remote.endswith(".py") and Path(remote).is_file()):
        problems.append(
            f"--reward.remote_url {remote}: only a .py file with reward_func(queries, prompts, labels) that exists"
        )
    return problems


def _name_policies(by_policy: Mapping[str, list[str]]) -> list[str]:
    """Problems with the policies that have them; without a name where all have the same."""
    owners: dict[str, list[str]] = {}
    for name, problems in by_policy.items():
        for problem in problems:
            owners.setdefault(problem, []).append(name)
    return [
        problem if len(names) == len(by_policy) else f"policy {', '.join(map(repr, names))}: {problem}"
        for problem, names in owners.items()
    ]


def _check_files(run: Run, origins: Origins) -> list[str]:
    recipe, problems = run.recipe, []
    wanted = [
        ("workflow", recipe.workflow, "run"),
        ("grader", recipe.grader, "score_outcome"),
        ("tasks", recipe.tasks, "load"),
    ]
    for key, file, function in wanted:
        if file is None:
            continue
        where = origins.where(key) if origins.lines else str(run.folder / file)
        try:
            module = getattr(run, f"{key}_module")
        except ConfigurationError as error:
            problems += [f"{where}: {key}: {p}" for p in error.problems]
            continue
        if not callable(getattr(module, function, None)):
            problems.append(f"{where}: {key}: {run.folder / file} has no function {function}")
    scored = (
        recipe.grader
        or run.args.reward.remote_url
        or run.plugins.claims("marl_score_outcome")
        or run.plugins.claims("marl_score_action")
    )
    if not scored:
        problems.append(
            "nothing scores the agents: give the recipe a grader, --reward.remote_url file.py, or a coach plugin"
        )
    if not recipe.tasks and not run.args.data.prompt_dataset and not run.plugins.claims("marl_tasks"):
        problems.append("there are no tasks: give the recipe `tasks:`, or --data.prompt_dataset FILE")
    return problems


def policies_of(run: Run) -> list[Policy]:
    """The recipe's policies: one per name in the mapping, in the order of the roles."""
    policies: dict[str, Policy] = {}
    for role in run.recipe.roles:
        if isinstance(run.recipe.mapping, dict) and role not in run.recipe.mapping:
            continue
        name = run.recipe.policy_of(role)
        if name not in policies:
            config = run.recipe.policies.get(name, PolicyConfig())
            model = config.model or run.recipe.model or run.args.actor.model_name_or_path or ""
            local = run.folder / model
            if model.startswith("."):
                model = str(local)
            policies[name] = Policy(name, model, trainable=config.trainable, flags=config.flags)
    return list(policies.values())


def engine_gpus(args: SimpleNamespace) -> int:
    """Devices that a policy's engines take."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def training_gpus(args: SimpleNamespace) -> int:
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def needed_devices(run: Run) -> dict[str, int]:
    """Devices by policy: training processes, engines, and, on GPUs, reference processes of their own."""
    needed = {}
    for policy in run.policies:
        a = run.policy_args[policy.name]
        engines = engine_gpus(a)
        if not policy.trainable:
            needed[policy.name] = engines
        elif a.train.colocate_all:
            needed[policy.name] = training_gpus(a)
        else:
            reference = 0
            if a.algo.kl.init_coef > 0 and not a.train.colocate_actor_ref and run.device != "cpu":
                reference = int(a.ref.num_nodes * a.ref.num_gpus_per_node)
            needed[policy.name] = training_gpus(a) + engines + reference
    return needed


def describe(run: Run) -> dict[str, Any]:
    """The resolved plan as JSON values, for `--dry-run`."""
    return {
        "recipe": run.recipe.name,
        "device": run.device,
        "openrlhf": upstream_cli.upstream_version(),
        "plugins": run.plugins.versions(),
        "roles": {
            name: {
                "policy": run.recipe.policy_of(name),
                "prompt": str(run.folder / role.prompt),
                "tools": role.tools,
                "max_turns": role.max_turns,
            }
            for name, role in run.recipe.roles.items()
        },
        "policies": {
            p.name: {
                "model": p.model,
                "trainable": p.trainable,
                "engines": run.policy_args[p.name].vllm.num_engines,
                "ranks": training_gpus(run.policy_args[p.name]) if p.trainable else 0,
                "zero_stage": run.policy_args[p.name].ds.zero_stage,
                "learning_rate": run.policy_args[p.name].actor.adam.lr,
                "kl": run.policy_args[p.name].algo.kl.init_coef,
                "flags": dict(p.flags),
            }
            for p in run.policies
        },
        "devices": needed_devices(run),
        "step": {
            "tasks": run.args.rollout.batch_size,
            "trajectories": run.trajectories,
            "optimiser_steps": run.optimiser_steps,
            "trajectories_per_optimiser_step": run.args.train.batch_size,
        },
        "scores": "[0, 1]",
        "output": str(run.output),
        "checkpoints": run.args.ckpt.path,
        "flags": {name: _value(run.args, name) for name in sorted(run.given) if not name.startswith("policy.")},
        "warnings": run.warnings,
    }


def _value(args: SimpleNamespace, name: str) -> Any:
    value: Any = args
    for part in name.split("."):
        value = getattr(value, part, None)
    return copy.copy(value)


def installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return os.access(folder, os.W_OK | os.X_OK)
