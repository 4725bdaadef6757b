"""What is wrong with roles, policies and numbers of a run."""

from __future__ import annotations

import keyword
import re
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.policy import Policy
from marl_plugins.core.recipe import PolicyConfig, Recipe, RoleConfig
from marl_plugins.core.recipe_yaml import Origins
from marl_plugins.core.section import Section
from marl_plugins.core.texts import read_text
from marl_plugins.core.tiny import is_tiny
from marl_plugins.hosts import cpu
from marl_plugins.hosts.devices import critic_gpus, engine_gpus, training_gpus
from marl_plugins.plan.devices import needed_devices, shown_devices
from marl_plugins.plan.models import positions_of
from marl_plugins.run import Run

NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""Of a role or a policy, which names files and folders too."""


def _where_mapping(origins: Origins, *key: str) -> str:
    return origins.where("mapping", *key) if ("mapping",) in origins.lines else "--mapping"


def check_roles(
    recipe: Recipe,
    origins: Origins,
    folder: Path,
    tool_names: set[str] | None,
    sections: Mapping[str, type[Section]] = MappingProxyType({}),
) -> list[str]:
    """What is wrong with the roles: mapping, names, prompt files, tools, turns.

    Args:
        tool_names: None: the run's tools are not known.
        sections: The model of each section that the recipe may have.
    """
    problems = []
    if isinstance(recipe.mapping, dict):
        mapping = recipe.mapping
        problems += [
            f"{_where_mapping(origins)}: role {role!r} is mapped to no policy"
            for role in recipe.roles
            if role not in mapping
        ]
        problems += [
            f"{_where_mapping(origins, role)}: there is no role {role!r} to be mapped{nearest(role, recipe.roles)}"
            for role in mapping
            if role not in recipe.roles
        ]
    for name, config in recipe.roles.items():
        if keyword.iskeyword(name):
            problems.append(
                f"{origins.where('roles', name)}: role {name!r} cannot be called: it is a Python keyword; choose another name"
            )
        if not re.fullmatch(NAME, name) or name.startswith("_"):
            problems.append(
                f"{origins.where('roles', name)}: role {name!r} cannot be called: letters, digits and underscores only, a letter "
                "first, at most 64"
            )
        for key in ("prompt", "system", "followup"):
            problems += _prompt_problems(name, key, getattr(config, key), origins, folder)
        if "" in config.stop:
            problems.append(
                f"{origins.where('roles', name, 'stop')}: roles.{name}.stop: '' occurs in every text; remove it"
            )
        problems += _tool_problems(name, config, origins, tool_names, sections)
    return problems


def _prompt_problems(role: str, key: str, file: str | None, origins: Origins, folder: Path) -> list[str]:
    if file is None:
        return []
    where = origins.where("roles", role, key) if origins.lines else str(folder / file)
    try:
        text = read_text(folder / file)
        fields = [name for _, name, _, _ in string.Formatter().parse(text) if name is not None]
    except ConfigurationError as error:
        return [f"{where}: roles.{role}.{key}: {error}"]
    except ValueError as error:
        return [f"{where}: roles.{role}.{key}: {folder / file}: {error}; write {{{{ and }}}} for braces"]
    if not text.strip():
        return [f"{where}: roles.{role}.{key}: {folder / file} is empty"]
    problems = [
        f"{where}: roles.{role}.{key}: {folder / file}: {{{field}}} is not a field; a field is a name such as {{problem}}, and "
        "braces are written {{ and }}"
        for field in fields
        if not field.isidentifier()
    ]
    problems += [
        f"{where}: roles.{role}.{key}: {folder / file}: {{{field}}} cannot be given: `{field}=` means something else in a call; "
        "rename the field"
        for field in fields
        if keyword.iskeyword(field) or field in ("after", "continues")
    ]
    try:
        _ = problems or text.format_map(dict.fromkeys(fields, ""))
    except (ValueError, KeyError) as error:  # what follows `:` or `!` in a field
        return [f"{where}: roles.{role}.{key}: {folder / file}: {error}; a field is a name alone, such as {{problem}}"]
    return problems


def _tool_problems(
    role: str, config: RoleConfig, origins: Origins, tool_names: set[str] | None, sections: Mapping[str, type[Section]]
) -> list[str]:
    settings = {tool: sections.get(f"tools.{tool}") for tool in config.tools}
    problems = [
        f"{origins.where('roles', role, 'tools')}: there is no tool {tool!r}{nearest(tool, tool_names)}; "
        + (
            f"it is there where the recipe has its settings: `tools: {{{tool}: {model.example()}}}`"
            if (model := settings[tool])
            else "a plugin's tools are there where the plugin is named (--plugin, or `plugins:` in the recipe)"
        )
        for tool in config.tools
        if tool_names is not None and tool not in tool_names
    ]
    if config.max_turns > 1 and not config.tools:
        problems.append(
            f"{origins.where('roles', role, 'max_turns')}: role {role!r} has {config.max_turns} turns and no tools; "
            "only a tool's answer starts another turn"
        )
    return problems


def check_policies(run: Run, policies: Sequence[Policy], without: Mapping[str, str], origins: Origins) -> list[str]:
    """What is wrong with the policies that a run is to have.

    Args:
        without: Policies of the recipe that this run does without, and the flag for which it does.
    """
    recipe, problems = run.recipe, []
    names = [p.name for p in policies]
    for name in sorted({n for n in names if names.count(n) > 1}):
        problems.append(f"two policies are called {name!r}")
    for role in recipe.mapped_roles:
        policy = recipe.policy_of(role)
        if policies and policy not in names:
            problems.append(f"role {role!r} is mapped to policy {policy!r}, which does not exist{nearest(policy, names)}")
    problems += [
        f"{origins.where('policies', name)}: no role is mapped to policy {name!r}{nearest(name, names)}"
        for name in recipe.policies
        if name not in names and name not in without
    ]
    problems += [
        f"policy {p.name!r}: a policy's name is also a folder's: letters, digits and underscores only, at most 64"
        for p in policies
        if not re.fullmatch(NAME, p.name)
    ]
    if policies and not any(p.trainable for p in policies):
        where = next((f"{origins.where(*k)}: " for k in origins.lines if k[-1:] == ("trainable",)), "")
        problems.append(f"{where}every policy is frozen (trainable: false); at least one must be trained")
    return problems


def check_followers(run: Run, policies: Sequence[Policy], origins: Origins) -> list[str]:
    """What is wrong with the policies that hold another one's weights."""
    by_name, problems = {p.name: p for p in policies}, []
    for policy in (p for p in policies if p.follows):
        followed = by_name.get(policy.follows)

        def add(key: str, problem: str, name: str = policy.name) -> None:
            where = f"{origins.where('policies', name, key)}: " if origins.lines else ""
            problems.append(f"{where}policies.{name}.{key}: {problem}")

        if followed is policy:
            add("follows", "a policy cannot follow itself; name a trained one")
        elif followed is None:
            others = [p.name for p in policies if p.trainable and p is not policy]
            add("follows", f"there is no policy {policy.follows!r} in this run{nearest(policy.follows, others)}")
        elif not followed.trainable:
            add("follows", f"policy {policy.follows!r} is not trained; name a trained one, or use `trainable: false`")
        if policy.trainable:
            add("trainable", f"it follows {policy.follows!r} and is not trained itself; remove the key")
        if run.recipe.policies.get(policy.name, PolicyConfig()).model:
            add("model", f"it has the model of {policy.follows!r}, which it follows; remove the key")
        if run.device != "cpu":
            add(
                "follows",
                "not on GPUs yet: upstream's weight sync reaches the engines of one policy only (one broadcast group each, "
                "ppo_actor.py:108); use `trainable: false` with a model of its own",
            )
    return problems


def check_numbers(run: Run) -> list[str]:
    """Numbers that do not fit each other; the range of each alone is checked with its flag (ranges.py)."""
    args, problems = run.args, []
    if run.trajectories % max(1, args.train.batch_size):
        problems.append(
            f"a step has {run.trajectories} trajectories (--rollout.batch_size {args.rollout.batch_size} x "
            f"--rollout.n_samples_per_prompt {args.rollout.n_samples_per_prompt}), which --train.batch_size "
            f"{args.train.batch_size} (trajectories per optimiser step) does not divide"
        )
    if run.device != "cpu" and sum(p.trainable for p in run.policies) > 1 and args.vllm.sync_with_ray:
        problems.append(
            "--vllm.sync_with_ray is for one policy: upstream calls the group of every policy 'openrlhf' (ppo_actor.py:128); "
            "leave it out, the engines are then synchronised over torch's own groups"
        )
    problems += prefix_with_policies(
        {
            name: [*_lengths(run, name, a), *_batching(run.device, a), *_placement(run.device, a)]
            for name, a in run.policy_args.items()
        }
    )
    if run.logical_gpus is not None and run.device != "cpu":
        problems.append("--logical_gpus is for machines without GPUs")
    elif run.logical_gpus is not None and run.policy_args and run.logical_gpus < sum(needed_devices(run).values()):
        problems.append(
            f"--logical_gpus {run.logical_gpus}: the plan needs {sum(needed_devices(run).values())} ({shown_devices(run)}); use "
            "fewer engines (--vllm.num_engines), fewer ranks (--actor.num_gpus_per_node) or a shared mapping (--mapping shared)"
        )
    return problems


def _lengths(run: Run, policy: str, a: Any) -> list[str]:
    """Token limits of one policy that contradict each other or its model."""
    problems = []
    buffer, longest = a.reward.overlong_buffer_len, a.rollout.max_new_tokens
    if buffer is not None and longest is not None and buffer > longest:
        problems.append(f"--reward.overlong_buffer_len {buffer} is over --rollout.max_new_tokens {longest}")
    clip = a.reward.clip_range
    if clip and not clip[0] < clip[1]:
        problems.append(f"--reward.clip_range {clip[0]:g} {clip[1]:g}: expected two numbers, the lower one first")
    for role in run.recipe.roles_of(policy):
        limit = run.role(role).max_new_tokens
        if buffer is not None and limit and buffer > limit:
            problems.append(f"--reward.overlong_buffer_len {buffer} is over the max_new_tokens {limit} of role {role!r}")
        if limit and limit >= a.data.max_len:
            problems.append(f"role {role!r}: max_new_tokens {limit} leaves no room in --data.max_len {a.data.max_len}")
    model = a.actor.model_name_or_path
    positions = positions_of(model)
    if positions is not None and a.data.max_len > positions:
        larger = f", or name the model tiny:positions={a.data.max_len}" if is_tiny(model) else ""
        problems.append(f"--data.max_len {a.data.max_len} is over the {positions} positions of its model; lower it{larger}")
    if longest is not None and longest >= a.data.max_len:
        problems.append(
            f"--rollout.max_new_tokens {longest} leaves no room for a prompt in --data.max_len {a.data.max_len}"
        )
    return problems


def _batching(device: str, a: Any) -> list[str]:
    """Packing, micro-batches by tokens and sequence parallelism where they cannot work."""
    problems = []
    if a.train.dynamic_batch_enable:
        problems += [
            f"--{stage}.max_tokens_per_gpu {tokens} is under --data.max_len {a.data.max_len}: a conversation of that length would "
            "fit into no micro-batch; raise it, or lower --data.max_len"
            for stage in ("train", "rollout")
            if (tokens := getattr(a, stage).max_tokens_per_gpu) is not None and tokens < a.data.max_len
        ]
    if device == "cpu" and a.ds.ring_attn_size > 1:
        problems.append("--ds.ring_attn_size needs GPUs")
    if device == "cpu" and a.ds.packing_samples and a.ds.attn_implementation not in ("eager", "sdpa"):
        problems.append(
            f"--ds.packing_samples: attention {a.ds.attn_implementation!r} is not known to keep packed rows apart on a CPU; use "
            "--ds.attn_implementation eager or sdpa"
        )
    return problems


def _placement(device: str, a: Any) -> list[str]:
    """Devices and settings of one policy that cannot be combined, or not on this machine."""
    problems = []
    ranks = f"must equal {training_gpus(a)} (--actor.num_nodes x --actor.num_gpus_per_node)"
    if a.train.colocate_all and engine_gpus(a) != training_gpus(a):
        problems.append(
            f"--train.colocate_all puts engines and training on the same devices: {engine_gpus(a)} (--vllm.num_engines x "
            f"--vllm.tensor_parallel_size) {ranks}"
        )
    if a.train.colocate_all and critic_gpus(a) not in (0, training_gpus(a)):
        problems.append(
            f"--train.colocate_all puts the critic on the policy's devices: {critic_gpus(a)} (--critic.num_nodes x "
            f"--critic.num_gpus_per_node) {ranks}"
        )
    if device != "cpu":
        return problems
    if a.train.colocate_all or a.vllm.enable_sleep or a.ds.enable_sleep:
        problems.append(
            "--train.colocate_all, --vllm.enable_sleep and --ds.enable_sleep share a GPU's memory, and there is none here; use "
            f"a recipe for CPUs (the shipped ones have a tiny.yaml), or set {cpu.DEVICE}=cuda to see the plan for GPUs"
        )
    if a.ds.zero_stage == 3:
        problems.append("--ds.zero_stage 3 is refused on CPU: it gave NaN with two ranks in one of four runs")
    if a.ds.attn_implementation.startswith("flash"):
        problems.append(f"--ds.attn_implementation {a.ds.attn_implementation} needs a GPU; use eager or sdpa")
    return problems


def prefix_with_policies(by_policy: Mapping[str, list[str]]) -> list[str]:
    """Problems with the policies that have them; without a name where all have the same."""
    owners: dict[str, list[str]] = {}
    for name, problems in by_policy.items():
        for problem in problems:
            owners.setdefault(problem, []).append(name)
    return [
        problem
        if len(names) == len(by_policy) and not problem.startswith("it ")
        else f"policy {', '.join(map(repr, names))}: {problem}"
        for problem, names in owners.items()
    ]
