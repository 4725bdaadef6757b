"""Everything about a run that can be known to be wrong before anything starts."""

from __future__ import annotations

import json
import math
import os
import re
import string
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.recipe import Origins, Recipe
from marl_plugins.core.tiny import is_tiny
from marl_plugins.core.tiny import parse as parse_tiny
from marl_plugins.core.trajectory import Task
from marl_plugins.hosts import cpu
from marl_plugins.manager import Plugins, load_file
from marl_plugins.plan.rehearsal import rehearse
from marl_plugins.run import Run, critic_gpus, engine_gpus, flag_value, needed_devices, optimiser_steps, training_gpus

NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def tool_names_of(plugins: Plugins, run: Run) -> set[str] | None:
    return {tool.name for tools in plugins.planned("marl_tools", run=run) for tool in tools or ()}


def _where_mapping(origins: Origins, *key: str) -> str:
    return origins.where("mapping", *key) if ("mapping",) in origins.lines else "--mapping"


def check_roles(recipe: Recipe, origins: Origins, folder: Path, tool_names: set[str] | None) -> list[str]:
    problems = []
    if isinstance(recipe.mapping, dict):
        for role in recipe.roles.keys() - recipe.mapping.keys():
            problems.append(f"{_where_mapping(origins)}: role {role!r} is mapped to no policy")
        for role in recipe.mapping.keys() - recipe.roles.keys():
            problems.append(
                f"{_where_mapping(origins, role)}: mapping: there is no role {role!r}{nearest(role, recipe.roles)}"
            )
    for name, config in recipe.roles.items():
        if not re.fullmatch(NAME, name):
            problems.append(
                f"{origins.where('roles', name)}: role {name!r} cannot be called: letters, digits and underscores only"
            )
        for key, file in (("prompt", config.prompt), ("system", config.system)):
            if file is None:
                continue
            where = origins.where("roles", name, key) if origins.lines else str(folder / file)
            try:
                text = (folder / file).read_text(encoding="utf-8")
                fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
                for field_name in fields:
                    if not field_name.isidentifier():
                        problems.append(
                            f"{where}: roles.{name}.{key}: {folder / file}: {{{field_name}}} is not a field; a field is a "
                            "name such as {problem}, and braces are written {{ and }}"
                        )
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


def check_policies(run: Run, recipe: Recipe, origins: Origins) -> list[str]:
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
        if name not in names and name in run.idle:
            run.warnings.append(f"policy {name!r} of the recipe plays no role with {run.idle[name]}")
        elif name not in names:
            problems.append(
                f"{origins.where('policies', name)}: no role is mapped to policy {name!r}{nearest(name, names)}"
            )
    for p in run.policies:
        if not re.fullmatch(NAME, p.name):
            problems.append(f"policy {p.name!r}: a policy's name is also a folder's: letters, digits and underscores only")
        if p.base or p.adapter:
            problems.append(f"policy {p.name!r}: adapters on a shared base are not supported yet")
    if run.policies and not any(p.trainable for p in run.policies):
        problems.append("every policy is frozen (trainable: false); at least one must be trained")
    return problems


def model_problem(model: str) -> str | None:
    """What is wrong with a model's name as far as can be seen without loading it."""
    if not model:
        return "it has no model: give `model:` in the recipe or --actor.model_name_or_path"
    if model.partition(":")[0] == "tiny":
        try:
            parse_tiny(model)
        except ConfigurationError as error:
            return str(error)
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


AT_LEAST_ONE = (
    "rollout.batch_size",
    "rollout.n_samples_per_prompt",
    "train.batch_size",
    "train.num_episodes",
    "eval.n_samples_per_prompt",
    "data.max_samples",
)


AT_LEAST_ONE_EACH = (
    "train.micro_batch_size",
    "rollout.micro_batch_size",
    "train.max_epochs",
    "vllm.num_engines",
    "vllm.tensor_parallel_size",
    "actor.num_nodes",
    "actor.num_gpus_per_node",
    "ref.num_nodes",
    "ref.num_gpus_per_node",
    "critic.num_nodes",
    "critic.num_gpus_per_node",
    "rollout.max_new_tokens",
    "data.max_len",
)


FINITE = (
    "actor.adam.lr",
    "critic.adam.lr",
    "algo.kl.init_coef",
    "algo.advantage.gamma",
    "algo.advantage.lambd",
    "rollout.temperature",
    "rollout.top_p",
)


def check_numbers(run: Run) -> list[str]:
    """Batch arithmetic and the like."""
    args, problems = run.args, []
    for name in AT_LEAST_ONE:
        value = flag_value(args, name)
        if value is not None and not value >= 1:
            problems.append(f"--{name} is {value}; it must be at least 1")
    for name in FINITE:
        if not math.isfinite(flag_value(args, name)):
            problems.append(f"--{name} is {flag_value(args, name)}; it must be a number")
    if problems:
        return problems
    if not 0 <= args.algo.advantage.lambd <= 1:
        problems.append(f"--algo.advantage.lambd is {args.algo.advantage.lambd}; it must lie between 0 and 1")
    if run.trajectories % args.train.batch_size:
        problems.append(
            f"a step has {run.trajectories} trajectories (--rollout.batch_size {args.rollout.batch_size} x "
            f"--rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt}), which --train.batch_size "
            f"{args.train.batch_size} (trajectories per optimiser step) does not divide"
        )
    by_policy: dict[str, list[str]] = {}
    for name, a in run.policy_args.items():
        mine = by_policy.setdefault(name, [])
        mine += [
            f"--{flag} is {flag_value(a, flag)}; it must be at least 1"
            for flag in AT_LEAST_ONE_EACH
            if flag_value(a, flag) is not None and not flag_value(a, flag) >= 1
        ]
        if mine:
            continue
        if not a.rollout.temperature > 0:
            mine.append(f"--rollout.temperature is {a.rollout.temperature}; it must be above 0: the trainer divides by it")
        if not 0 < a.rollout.top_p <= 1:
            mine.append(f"--rollout.top_p is {a.rollout.top_p}; it must lie above 0 and be at most 1")
        buffer, longest = a.reward.overlong_buffer_len, a.rollout.max_new_tokens
        if buffer is not None and longest is not None and buffer > longest:
            mine.append(f"--reward.overlong_buffer_len {buffer} is over --rollout.max_new_tokens {longest}")
        if a.ds.zero_stage not in (0, 1, 2, 3):
            mine.append(f"--ds.zero_stage is {a.ds.zero_stage}; it is 0, 1, 2 or 3")
        if a.train.colocate_all and engine_gpus(a) != training_gpus(a):
            mine.append(
                f"--train.colocate_all puts engines and training on the same devices: {engine_gpus(a)} (--vllm.num_engines x "
                f"--vllm.tensor_parallel_size) must equal {training_gpus(a)} (--actor.num_nodes x --actor.num_gpus_per_node)"
            )
        if a.train.colocate_all and critic_gpus(a) not in (0, training_gpus(a)):
            mine.append(
                f"--train.colocate_all puts the critic on the policy's devices: {critic_gpus(a)} (--critic.num_nodes x "
                f"--critic.num_gpus_per_node) must equal {training_gpus(a)} (--actor.num_nodes x --actor.num_gpus_per_node)"
            )
        if run.device == "cpu" and (a.train.colocate_all or a.vllm.enable_sleep or a.ds.enable_sleep):
            mine.append(
                "--train.colocate_all, --vllm.enable_sleep and --ds.enable_sleep share a GPU's memory, and there is none here; use "
                f"a recipe for CPUs (the shipped ones have a tiny.yaml), or set {cpu.DEVICE}=cuda to see the plan for GPUs"
            )
        for role, config in run.recipe.roles.items():
            if plays(run, role, name) and config.max_new_tokens and config.max_new_tokens >= a.data.max_len:
                mine.append(
                    f"role {role!r}: max_new_tokens {config.max_new_tokens} leaves no room in --data.max_len {a.data.max_len}"
                )
        settings = parse_tiny(a.actor.model_name_or_path) if is_tiny(a.actor.model_name_or_path) else None
        if settings and a.data.max_len > settings["positions"]:
            mine.append(
                f"--data.max_len {a.data.max_len} is over the {settings['positions']} positions of its tiny model; lower it, or "
                f"name the model tiny:positions={a.data.max_len}"
            )
        if a.rollout.max_new_tokens is not None and a.rollout.max_new_tokens >= a.data.max_len:
            mine.append(
                f"--rollout.max_new_tokens {a.rollout.max_new_tokens} leaves no room for a prompt in --data.max_len "
                f"{a.data.max_len}"
            )
        if run.device == "cpu" and a.ds.zero_stage == 3:
            mine.append("--ds.zero_stage 3 is refused on CPU: it gave NaN with two ranks in one of four runs")
        if run.device == "cpu" and a.ds.attn_implementation.startswith("flash"):
            mine.append(f"--ds.attn_implementation {a.ds.attn_implementation} needs a GPU; use eager or sdpa")
    if args.eval.temperature < 0:
        problems.append(f"--eval.temperature is {args.eval.temperature}; it must be at least 0")
    if run.device != "cpu" and sum(p.trainable for p in run.policies) > 1 and args.vllm.sync_with_ray:
        problems.append(
            "--vllm.sync_with_ray is for one policy: upstream calls the group of every policy 'openrlhf' (ppo_actor.py:128); "
            "leave it out, the engines are then synchronised over torch's own groups"
        )
    problems += name_policies(by_policy)
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
    elif remote:
        try:
            if not callable(getattr(load_file(Path(remote), "marl_reward_function"), "reward_func", None)):
                problems.append(f"--reward.remote_url {remote}: has no function reward_func(queries, prompts, labels)")
        except ConfigurationError as error:
            problems += [f"--reward.remote_url: {p}" for p in error.problems]
    return problems


def plays(run: Run, role: str, policy: str) -> bool:
    """Whether a policy plays a role; a role that is mapped to none is said elsewhere."""
    mapping = run.recipe.mapping
    return (isinstance(mapping, str) or role in mapping) and run.recipe.policy_of(role) == policy


def name_policies(by_policy: Mapping[str, list[str]]) -> list[str]:
    """Problems with the policies that have them; without a name where all have the same."""
    owners: dict[str, list[str]] = {}
    for name, problems in by_policy.items():
        for problem in problems:
            owners.setdefault(problem, []).append(name)
    return [
        problem if len(names) == len(by_policy) else f"policy {', '.join(map(repr, names))}: {problem}"
        for problem, names in owners.items()
    ]


def check_files(run: Run, origins: Origins) -> list[str]:
    recipe, problems = run.recipe, []
    warm = recipe.warm_start
    wanted: list[tuple[str, str, str | None, str]] = [
        ("workflow", "workflow", recipe.workflow, "run"),
        ("grader", "grader", recipe.grader, "score_outcome"),
        ("tasks", "tasks", recipe.tasks, "load"),
        ("warm_start.demonstrations", "demonstrations", warm.demonstrations if warm else None, "demonstrate"),
    ]
    for place, key, file, function in wanted:
        if file is None:
            continue
        where = origins.where(*place.split(".")) if origins.lines else str(run.folder / file)
        try:
            module = getattr(run, f"{key}_module")
        except ConfigurationError as error:
            problems += [f"{where}: {place}: {p}" for p in error.problems]
            continue
        if not callable(getattr(module, function, None)):
            problems.append(f"{where}: {place}: {run.folder / file} has no function {function}")
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
    if run.args.eval.dataset and not (
        recipe.grader or run.args.reward.remote_url or run.plugins.claims("marl_score_outcome")
    ):
        problems.append(
            "--eval.dataset: nothing scores outcomes, so an evaluation has nothing to count: give the recipe a grader or "
            "--reward.remote_url file.py"
        )
    for flag, key, value in (
        ("data.prompt_dataset", "tasks", recipe.tasks),
        ("eval.dataset", "tasks", recipe.tasks),
        ("reward.remote_url", "grader", recipe.grader),
    ):
        if value and flag in run.given:
            problems.append(f"--{flag} would have no effect: the recipe has `{key}: {value}`; take one of the two out")
    for flag in ("ckpt.output_dir", "ckpt.path"):
        if not writable(Path(flag_value(run.args, flag)).absolute()):
            problems.append(f"--{flag} {flag_value(run.args, flag)}: files cannot be made there")
    if not recipe.tasks and not run.args.data.prompt_dataset and not run.plugins.claims("marl_tasks"):
        problems.append("there are no tasks: give the recipe `tasks:`, or --data.prompt_dataset FILE")
    return problems


def check_workflow(run: Run, tools: set[str] | None) -> list[str]:
    """Mistakes of the recipe's workflow that show without any model; what else it raises is a warning."""
    if run.plugins.claims("marl_workflow"):
        return []
    tasks = [] if hub_tasks(run) else run.tasks("train")
    task = tasks[0] if tasks else Task("example", "an example", "0")
    found = rehearse(run.workflow_module.run, run.recipe, run.folder, task, tools or ())
    run.warnings += found.odd
    return found.wrong


def hub_tasks(run: Run) -> bool:
    """Whether tasks have to be had from a hub, which is left to a real start."""
    names = [run.args.data.prompt_dataset, run.args.eval.dataset]
    return not run.recipe.tasks and any(name and Path(name).suffix not in (".json", ".jsonl") for name in names)


def check_tasks(run: Run) -> list[str]:
    """What is wrong with the tasks themselves, whoever brought them."""
    problems = []
    train, evaluation = run.tasks("train"), run.tasks("eval")
    if not train:
        problems.append("there are no tasks to train on")
    elif not optimiser_steps(run, len(train)):
        problems.append(
            f"{len(train)} tasks x {run.args.rollout.n_samples_per_prompt} samples are fewer trajectories than one optimiser "
            f"step takes (--train.batch_size {run.args.train.batch_size})"
        )
    for split, tasks in (("train", train), ("eval", evaluation)):
        counts = Counter(task.id for task in tasks)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            problems.append(
                f"{split} tasks: {len(twice)} ids are used more than once, the first {twice[0]!r}; ids name results"
            )
        for task in tasks:
            for name in ("id", "prompt"):
                if not isinstance(getattr(task, name), str) or not getattr(task, name):
                    problems.append(
                        f"{split} task {task.id!r}: its {name} must be a non-empty string, got {getattr(task, name)!r:.100}; "
                        "chat messages become one with `tasks:`, a file with load(split)"
                    )
                    return problems
            try:
                json.dumps([task.label, task.metadata])
            except TypeError as error:
                problems.append(f"{split} task {task.id!r}: label and metadata must be JSON values: {error}")
                break
    same = {_words(t.prompt) for t in train} & {_words(t.prompt) for t in evaluation}
    if same:
        problems.append(
            f"{len(same)} of {len(evaluation)} evaluation tasks are in the training data too, the first {min(same)[:80]!r}; what "
            "was trained on proves nothing"
        )
    elif run.tasks_module is not None:
        both = {t.id for t in train} & {t.id for t in evaluation}
        if both:
            problems.append(f"{len(both)} tasks are in both train and eval, the first {min(both)!r}")
    return problems


def _words(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.lower().split())


def writable(folder: Path) -> bool:
    """Whether files can be made in a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
