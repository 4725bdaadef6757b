"""`tiny.yaml`: the imported recipe with random tiny models on a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

HEAD = {
    "extends": "recipe.yaml",
    "description": "The same with random tiny models on a CPU: shows that everything runs, learns "
    "nothing",
    "model": "tiny:positions=4096",
}
FLAGS = {
    "data.max_len": 4096,
    "rollout.max_new_tokens": 32,
    "ds.zero_stage": 0,
    "actor.num_gpus_per_node": 1,
    "ref.num_gpus_per_node": 1,
    "critic.num_gpus_per_node": 1,
    "actor.num_nodes": 1,
    "ref.num_nodes": 1,
    "critic.num_nodes": 1,
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
}
NOT_ON_CPU = (
    "train.colocate_all",
    "train.colocate_actor_ref",
    "vllm.enable_sleep",
    "ds.enable_sleep",
    "ds.adam_offload",
    "ds.attn_implementation",
    "reward.overlong_buffer_len",
    "vllm.gpu_memory_utilization",
)


def tiny_yaml(recipe: Mapping[str, Any]) -> str:
    has_critic = recipe["flags"].get("algo.advantage.estimator") == "gae"
    flags: dict[str, Any] = {
        name: value for name, value in FLAGS.items() if has_critic or not name.startswith("critic.")
    }
    flags |= {name: None for name in NOT_ON_CPU if name in recipe["flags"]}
    policies: dict[str, dict[str, None]] = {}
    for name, policy in recipe.get("policies", {}).items():
        if reset := {key: None for key in ("model", "flags") if key in policy}:
            policies[name] = reset
    tiny = {**HEAD, "flags": flags, **({"policies": policies} if policies else {})}
    return yaml.safe_dump(tiny, sort_keys=False)
