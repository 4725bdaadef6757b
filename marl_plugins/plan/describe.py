"""A plan in JSON values: for `--dry-run` and `plan.json`, and what a resumed run must have in common with the saved one."""

from __future__ import annotations

import copy
import hashlib
import json
from types import SimpleNamespace
from typing import Any

from marl_plugins.hosts import upstream_cli
from marl_plugins.hosts.devices import critic_gpus, training_gpus
from marl_plugins.plan.devices import needed_devices
from marl_plugins.plan.plan import Plan

SECRETS = ("logger.wandb.key",)
"""Flags that are never written down."""
PENALTIES = ("reward.overlong_buffer_len", "reward.stop_properly_penalty_coef")
"""Upstream's flags that change rewards after credit."""


def describe(plan: Plan) -> dict[str, Any]:
    """The resolved plan."""
    run = plan.run
    return {
        "recipe": run.recipe.name,
        "device": run.device,
        "openrlhf": upstream_cli.upstream_version(),
        "plugins": plan.plugins.versions(),
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
                "critic": run.policy_args[p.name].critic.model_name_or_path if p.trainable else None,
                "flags": dict(p.flags),
            }
            for p in run.policies
        },
        "devices": needed_devices(run),
        "devices_together": sum(needed_devices(run).values()),
        "tasks": plan.counted,
        "step": {
            "tasks": run.args.rollout.batch_size,
            "trajectories": run.trajectories,
            "optimiser_steps": run.optimiser_steps,
            "trajectories_per_optimiser_step": run.args.train.batch_size,
        },
        "rewards": _reward_range(plan),
        "output": str(run.output),
        "checkpoints": run.args.ckpt.path,
        "flags": {
            name: "***" if name in SECRETS else flag_value(run.args, name)
            for name in sorted(run.given)
            if not name.startswith("policy.")
        },
        "warnings": list(run.warnings),
    }


def _reward_range(plan: Plan) -> str:
    """What rewards look like after credit."""
    changed = [name for name in plan.run.plugins if plan.plugins.implements(name, "marl_credit")]
    changed += [f"--{name}" for name in PENALTIES if name in plan.run.given]
    return f"scores in [0, 1], changed by {', '.join(changed)}" if changed else "[0, 1], the scores"


def flag_value(args: SimpleNamespace, name: str) -> Any:
    """A flag's value in nested arguments, as JSON; None where an estimator or engine has no such flag."""
    value: Any = args
    for part in name.split("."):
        value = getattr(value, part, None)
    return copy.copy(value) if isinstance(value, str | int | float | bool | list | type(None)) else str(value)


def fingerprint(plan: Plan) -> dict[str, Any]:
    """What a resumed run must have in common with the one that was saved."""
    run, train = plan.run, plan.tasks("train")
    return {
        "roles": {r: run.recipe.policy_of(r) for r in run.recipe.roles},
        "policies": {
            p.name: {
                "model": p.model,
                "trainable": p.trainable,
                "ranks": training_gpus(run.policy_args[p.name]),
                "zero_stage": run.policy_args[p.name].ds.zero_stage,
                "epochs": run.policy_args[p.name].train.max_epochs,
                **({"critic": critic} if (critic := critic_gpus(run.policy_args[p.name])) else {}),
            }
            for p in run.policies
        },
        "warm_start": run.recipe.warm_start.model_dump() if run.recipe.warm_start else None,
        "seed": run.args.train.seed,
        "rollout.batch_size": run.args.rollout.batch_size,
        "rollout.n_samples_per_prompt": run.args.rollout.n_samples_per_prompt,
        "train.batch_size": run.args.train.batch_size,
        "train.num_episodes": run.args.train.num_episodes,
        "plugins": plan.plugins.versions(),
        "tasks": [len(train), digest([[t.id, t.prompt] for t in train])],
    }


def digest(value: Any) -> str:
    """A short digest of JSON values."""
    return hashlib.blake2b(json.dumps(value).encode(), digest_size=8).hexdigest()
