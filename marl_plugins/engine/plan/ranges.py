"""The values of upstream's flags that upstream itself does not check when they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from marl_plugins.core.options import Number, at_least, between

RANGES: Mapping[str, Number] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                "rollout.batch_size",
                "rollout.n_samples_per_prompt",
                "rollout.micro_batch_size",
                "rollout.max_new_tokens",
                "train.batch_size",
                "train.micro_batch_size",
                "train.async_queue_size",
                "train.num_episodes",
                "train.max_epochs",
                "eval.n_samples_per_prompt",
                "data.max_samples",
                "data.max_len",
                "vllm.num_engines",
                "vllm.tensor_parallel_size",
                "actor.num_nodes",
                "actor.num_gpus_per_node",
                "ref.num_nodes",
                "ref.num_gpus_per_node",
                "critic.num_nodes",
                "critic.num_gpus_per_node",
                "reward.num_nodes",
                "reward.num_gpus_per_node",
            ),
            at_least(1),
        ),
        **dict.fromkeys(
            (
                "actor.adam.lr",
                "critic.adam.lr",
                "actor.muon.lr",
                "critic.muon.lr",
                "actor.adam.weight_decay",
                "critic.adam.weight_decay",
                "actor.max_norm",
                "critic.max_norm",
                "actor.eps_clip",
                "algo.kl.init_coef",
                "reward.overlong_penalty_factor",
                "eval.temperature",
            ),
            at_least(0, float),
        ),
        **dict.fromkeys(
            (
                "algo.advantage.gamma",
                "algo.advantage.lambd",
                "actor.lr_warmup_ratio",
                "critic.lr_warmup_ratio",
                "actor.min_lr_ratio",
                "critic.min_lr_ratio",
            ),
            between(0, 1),
        ),
        "train.seed": Number(int, least=0, most=2**32 - 1),
        "rollout.temperature": Number(float, above=0, because="the trainer divides by it"),
        **dict.fromkeys(
            ("rollout.top_p", "vllm.gpu_memory_utilization"), Number(float, above=0, most=1)
        ),
        "reward.overlong_buffer_len": Number(float, above=0),
        "reward.stop_properly_penalty_coef": Number(float, most=1),
        "ds.zero_stage": Number(int, least=0, most=3),
        "ds.lora.rank": Number(
            int, least=0, most=512, because="vLLM's engines know no larger adapters"
        ),
        "ds.lora.alpha": at_least(1),
        "ds.lora.dropout": between(0, 1),
    }
)

SCHEDULERS = (
    "cosine_with_min_lr",
    "cosine_warmup_with_min_lr",
    "cosine",
    "cosine_with_restarts",
    "linear",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
)
"""Schedules of transformers that need nothing which upstream does not give them."""
CHOICES: Mapping[str, Sequence[str]] = MappingProxyType(
    dict.fromkeys(("actor.lr_scheduler", "critic.lr_scheduler"), SCHEDULERS)
)
