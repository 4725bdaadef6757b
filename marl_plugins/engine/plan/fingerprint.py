"""A run's fingerprint: what a run that resumes it must have in common with it, as JSON values.

It is kept in the manifest of every saved step (engine/runtime/checkpoints.py) and compared when a
run is resumed (engine/plan/resume.py). Files, plugins and models are held by name and content,
never by where they are, so that a moved project is the same run.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import translate
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.files import open_file
from marl_plugins.core.policy import Policy
from marl_plugins.core.problems import Where, at
from marl_plugins.core.redaction import shown_flag
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool
from marl_plugins.engine.hosts.devices import critic_gpus, training_gpus
from marl_plugins.engine.hosts.flags import FLAGS
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import estimator_of, is_from_plugin
from marl_plugins.engine.plan.workflow_file import workflow_files

FREE = (
    # what is written, saved and counted
    "logger.*",
    "ckpt.*",
    "eval.*",
    "critic.save_value_network",
    # where and when it is computed
    "vllm.*",
    "ref.*",
    "reward.offload",
    "*.num_nodes",
    "*.num_gpus_per_node",
    "train.colocate_*",
    "balance.*",
    "streaming.*",
    "external.*",
    # in which portions
    "*.micro_batch_size",
    "*.gradient_checkpointing_*",
    "ds.enable_sleep",
    "ds.overlap_comm",
)
"""Flags that may differ freely; so may `--max_steps` and the other flags of this project that are
not the recipe's."""
ELSEWHERE = (
    # policies and estimator
    "actor.model_name_or_path",
    "critic.model_name_or_path",
    "ds.zero_stage",
    "algo.advantage.estimator",
    # tasks
    "data.prompt_dataset",
    "data.prompt_split",
    "data.prompt_probs",
    "data.input_key",
    "data.label_key",
    "data.max_samples",
)
"""Flags that are compared by what they lead to."""
OF_POLICIES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "trainable": {"key": "trainable"},
        "ranks": {"flag": ("actor.num_nodes", "actor.num_gpus_per_node")},
        "critic": {"flag": ("critic.num_nodes", "critic.num_gpus_per_node")},
        "zero_stage": {"flag": "ds.zero_stage"},
    }
)
"""Settings of a policy to which its saved optimiser states belong, and the place where each is
given."""
FIXED = ("*.optim", "ds.param_dtype")
"""Flags whose change makes the saved optimiser states unreadable."""


def fingerprint(plan: Plan, tools: Mapping[str, Tool] | None = None) -> dict[str, Any]:
    """Returns what a resumed run must have in common with this one, as JSON values; the tasks as
    far as they have been read.

    Args:
        tools: Those of the session; None before it has begun, when what a server offers is not
            known yet.
    """
    run, estimator = plan.run, estimator_of(plan)
    own = {name: compared_flags(plan, args) for name, args in run.policy_args.items()}
    shared = next(iter(own.values()))
    recipe = run.recipe.model_dump(
        include={"roles", "workflow", "grader", "tasks"},
        exclude={"roles": {"__all__": {"example"}}},  # which no run reads
    )
    values = dict(values_of(recipe))
    for name, section in run.sections.items():
        if not isinstance(section, WarmStartConfig):
            values |= values_of(section.compared(), name)
    warm = run.section(WarmStartConfig)
    parts: dict[str, Any] = {
        "roles": {
            r: names[0] if len(names := run.recipe.policies_of(r)) == 1 else names
            for r in run.recipe.roles
        },
        "policies": {p.name: _policy(run, p) for p in run.policies},
        "estimator": type(estimator).__name__
        if is_from_plugin(estimator)
        else run.args.algo.advantage.estimator,
        "recipe": values,
        "warm_start": warm.compared() if warm else None,
        "files": {what: [shown, file_digest(path)] for what, (shown, path) in _files(plan).items()},
        "flags": shared,
        "policy_flags": {
            p: {n: v for n, v in flags.items() if v != shared.get(n)} for p, flags in own.items()
        },
        "plugins": plan.plugins.versions(),
    }
    if tools is not None:
        offered = {
            name: [function.schema for function in tool.functions or ()]
            for name, tool in tools.items()
        }
        parts["tools"] = {
            n: [sorted(s["function"]["name"] for s in all_), digest(all_)]
            for n, all_ in offered.items()
        }
    if "train" in plan.counted:
        train = plan.tasks("train")
        parts["tasks"] = [len(train), digest([[t.id, t.prompt] for t in train])]
        parts["labels"] = digest([[t.label, t.metadata] for t in train])
    result: dict[str, Any] = json.loads(json.dumps(parts, default=str))
    return result


class Compared(NamedTuple):
    """A value of a fingerprint.

    Args:
        shown: As people know it.
        value: What is compared: the same, or a digest.
        fixed: Whether a resumed run cannot change it.
        required: Whether it is a difference too where only one of two runs has it.
    """

    shown: Any
    value: Any
    fixed: bool = False
    required: bool = False


MISSING = Compared(None, None)


def compared(run: Mapping[str, Any]) -> dict[Where, Compared]:
    """Returns a fingerprint as values by their place."""
    values: dict[Where, Compared] = {}

    def add(
        shown: Any, value: Any = None, fixed: bool = False, required: bool = False, **at_: Any
    ) -> None:
        values[at(**at_)] = Compared(shown, shown if value is None else value, fixed, required)

    for role, player in run["roles"].items():
        add(player, fixed=True, required=True, flag="mapping", role=role)
    for name, policy in run["policies"].items():
        model = policy["model"]
        add(model, policy["content"] or model, True, True, policy=name, key="model")
        for key, place in OF_POLICIES.items():
            add(policy.get(key, 0), fixed=True, policy=name, **place)
        for key in ("follows", "template"):
            add(policy.get(key), policy=name, key=key)
    for flag, value in run["flags"].items():
        each = {policy: own.get(flag, value) for policy, own in run["policy_flags"].items()}
        same = all(other == value for other in each.values())
        add(value if same else each, fixed=matches(flag, FIXED), flag=flag)
    for plugin, version in run["plugins"].items():
        shown = plugin if plugin.endswith(".py") else version
        add(shown, version, required=True, plugin=plugin)
    for key, value in run["recipe"].items():
        add(value, key=key)
    for what, file in run["files"].items():
        add(*file, name=what)
    for tool, offered in run.get("tools", {}).items():
        add(*offered, tool=tool)
    add(run["warm_start"], key="warm_start")
    add(run["estimator"], name="the estimator")
    if "tasks" in run:
        add(*run["tasks"], name="training tasks")
        add("", run["labels"], name="labels of training tasks")
    return values


def digest(value: Any) -> str:
    """Returns a short digest of JSON values."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()


def file_digest(path: Path) -> str:
    """Returns a short digest of a file's content; empty where it cannot be read."""
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=8)).hexdigest()
    except OSError:
        return ""


def _policy(run: Run, policy: Policy) -> dict[str, Any]:
    args = run.policy_args[policy.name]
    settings = {
        "model": policy.shown_model,
        "content": model_digest(Path(policy.model)),
        "trainable": policy.trainable,
        "follows": policy.follows or None,
        "ranks": training_gpus(args),
        "zero_stage": args.ds.zero_stage,
    }
    rare = {"critic": critic_gpus(args), "template": dict(policy.template)}
    return settings | {key: value for key, value in rare.items() if value}


def model_digest(folder: Path) -> str | None:
    """Returns a short digest of a model's folder: its configuration, and name and size of its
    weights; None for a hub's name."""
    if not folder.is_dir():
        return None
    weights = sorted(
        [p.name, p.stat().st_size] for p in folder.iterdir() if p.suffix in (".safetensors", ".bin")
    )
    return digest([file_digest(folder / "config.json"), weights])


def compared_flags(plan: Plan, args: SimpleNamespace) -> dict[str, Any]:
    """Returns the flags that can be set and change what is learned: all but those of `FREE`,
    `ELSEWHERE` and plugins' `may_differ`."""
    free = _free(plan)
    kept = {
        name: value
        for name, value in values_of(args)
        if _can_be_set(name) and not matches(name, free)
    }
    return {
        name: Path(value).name if _is_file(value) else copy.copy(shown_flag(name, value))
        for name, value in kept.items()
    }


def _free(plan: Plan) -> list[str]:
    """The flags that may differ or are compared otherwise, the plugins' included."""
    modules = (plan.plugins.manager.get_plugin(name) for name in plan.plugins.names)
    return [
        *FREE,
        *ELSEWHERE,
        *(flag for module in modules for flag in getattr(module, "may_differ", ())),
    ]


def _can_be_set(flag: str) -> bool:
    return flag not in FLAGS or FLAGS[flag].status in ("all", "policy")


def _is_file(value: Any) -> bool:
    """Returns whether a flag's value names a file, such as a rubric."""
    return (
        isinstance(value, str)
        and bool(Path(value).suffix)
        and len(value) < 4096
        and Path(value).is_file()
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Returns whether a flag's name is one of the patterns, in which `*` stands for anything."""
    return _one_of(tuple(patterns)).fullmatch(name) is not None


@cache
def _one_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    """The patterns as one: a fingerprint asks for thousands of names."""
    return re.compile("|".join(map(translate, patterns)))


def values_of(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields nested mappings, or nested flags, by dotted keys."""
    if isinstance(value, SimpleNamespace):
        value = vars(value)
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from values_of(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _files(plan: Plan) -> dict[str, tuple[str, Path]]:
    """Every file that defines the run: what it is, as it is named, and where it is."""
    run, recipe = plan.run, plan.run.recipe
    files: dict[str, tuple[str, Path]] = {}
    parts: dict[str, str | None] = {}
    for role, config in recipe.roles.items():
        parts |= {
            f"prompt of role {role}": config.prompt,
            f"system prompt of role {role}": config.system,
            f"examples of role {role}": config.examples,
            f"followup prompt of role {role}": config.followup,
        }
    parts |= {"workflow": recipe.workflow, "grader": recipe.grader, "tasks": recipe.tasks}
    for section in run.sections.values():
        parts |= section.files()
    parts |= {
        f"workflow {file}": file
        for file in workflow_files(plan.plugins, run)
        if file != recipe.workflow
    }
    for what, file in parts.items():
        if file:
            files[what] = (file, run.folder / file)
    compared = compared_flags(plan, run.args)
    for flag, value in values_of(run.args):
        if flag in compared and _is_file(value):
            files[f"--{flag}"] = (Path(value).name, Path(value))
    known = {path.resolve() for _, path in files.values()}
    folder = run.folder.resolve()
    for path in _own_modules(folder, plan.plugins.names):
        if path not in known:
            files[f"module {path.relative_to(folder)}"] = (str(path.relative_to(folder)), path)
    return files


def _own_modules(folder: Path, plugins: Iterable[str]) -> list[Path]:
    """Files of the recipe's folder that its modules import; plugins have their own line."""
    inside, installed = f"{folder}{os.sep}", (sys.prefix, sys.base_prefix)
    loaded = [
        file
        for name, module in list(sys.modules.items())
        if name.partition(".")[0] != "marl_plugins" and (file := getattr(module, "__file__", None))
    ]
    own = {  # a link may lead here from anywhere but from what is installed
        Path(file).resolve()
        for file in loaded
        if file.startswith(inside) or not file.startswith(installed)
    } - {Path(name) for name in plugins if name.endswith(".py")}
    return sorted(
        file
        for file in own
        if file.is_relative_to(folder)
        and not any(
            part.startswith(".") or part == "site-packages"
            for part in file.relative_to(folder).parts
        )
    )
