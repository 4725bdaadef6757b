"""Finds what is wrong with the devices of a policy's processes: on this machine, on each other's
devices, in what they exchange."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from marl_plugins.core.problems import Problem, at
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.hosts.devices import (
    critic_gpus,
    engine_gpus,
    ranks_of_one_sequence,
    shares_with_reference,
    training_gpus,
)


def check_placement(device: str, a: Any, trained: bool) -> list[Problem]:
    """Returns problems with devices and settings of one policy that cannot be combined, or not on
    this machine.

    Args:
        device: `cpu` or `cuda`.
        a: The policy's flags.
        trained: A policy that is not trained has engines only.
    """
    if device == "cpu":
        return [*_shared(device, a), *_on_cpu(a)]
    return [*_shared(device, a), *_on_gpus(a)] if trained else []


def _shared(device: str, a: Any) -> Iterator[Problem]:
    """Processes on the devices of a policy's training processes, and as many of them."""
    ranks = f"must equal {training_gpus(a)} (--actor.num_nodes x --actor.num_gpus_per_node)"
    if a.train.colocate_all and engine_gpus(a) != training_gpus(a):
        yield Problem(
            "devices.colocated",
            got=(
                "--train.colocate_all puts engines and training on the same devices: "
                f"{engine_gpus(a)} (--vllm.num_engines x --vllm.tensor_parallel_size) {ranks}"
            ),
            flags=("train.colocate_all", "vllm.num_engines", "vllm.tensor_parallel_size"),
        )
    if a.train.colocate_all and critic_gpus(a) not in (0, training_gpus(a)):
        yield Problem(
            "devices.colocated",
            got=(
                f"--train.colocate_all puts the critic on the policy's devices: {critic_gpus(a)} "
                f"(--critic.num_nodes x --critic.num_gpus_per_node) {ranks}"
            ),
            fix="leave these flags out, the critic then has as many processes as the policy",
            flags=("train.colocate_all", "critic.num_nodes", "critic.num_gpus_per_node"),
        )
    reference = a.ref.num_nodes * a.ref.num_gpus_per_node
    if device == "cuda" and shares_with_reference(a) and reference != training_gpus(a):
        flag = "train.colocate_all" if a.train.colocate_all else "train.colocate_actor_ref"
        yield Problem(
            "devices.reference",
            got=(
                f"--{flag} puts the reference on the policy's devices: {reference} "
                f"(--ref.num_nodes x --ref.num_gpus_per_node) {ranks}"
            ),
            fix="leave these flags out, the reference then has as many processes as the policy",
            flags=(flag, "ref.num_nodes", "ref.num_gpus_per_node"),
        )


def _on_gpus(a: Any) -> Iterator[Problem]:
    """Returns what would fail on GPUs in the first minutes: at the start, or at the first weight
    sync after a whole rollout."""
    if a.ds.param_dtype != "bf16":
        yield Problem(
            "devices.dtype",
            at(flag="ds.param_dtype"),
            f"{a.ds.param_dtype}: engines are always bfloat16 (vllm_engine.py:273), and would "
            "answer by other weights than those that are trained",
            fix="use bf16",
            flags=("ds.param_dtype",),
        )
    same = ranks_of_one_sequence(a)
    counts = {"actor": training_gpus(a), "critic": critic_gpus(a)}
    if a.algo.kl.init_coef > 0:
        counts["ref"] = a.ref.num_nodes * a.ref.num_gpus_per_node
    for model, count in counts.items():
        if count % same:
            yield Problem(
                "devices.ring_size",
                at(flag="ds.ring_attn_size"),
                f"{same} ranks share a sequence, and {count} (--{model}.num_nodes x "
                f"--{model}.num_gpus_per_node) is no multiple of that",
                flags=("ds.ring_attn_size", f"{model}.num_gpus_per_node"),
            )


def _on_cpu(a: Any) -> Iterator[Problem]:
    """Returns what needs a GPU."""
    if a.ds.ring_attn_size > 1:
        yield Problem(
            "devices.ring_attention",
            got="--ds.ring_attn_size needs GPUs",
            flags=("ds.ring_attn_size",),
        )
    if a.train.colocate_all or a.vllm.enable_sleep or a.ds.enable_sleep:
        yield Problem(
            "devices.no_gpu",
            got="--train.colocate_all, --vllm.enable_sleep and --ds.enable_sleep share a GPU's "
            "memory, and there is none here",
            fix=(
                "use a recipe for CPUs (the shipped ones have a tiny.yaml), or set "
                f"{cpu.DEVICE}=cuda to see the plan for GPUs"
            ),
            flags=("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep"),
        )
    if a.ds.attn_implementation.startswith("flash"):
        yield Problem(
            "devices.attention",
            got=f"--ds.attn_implementation {a.ds.attn_implementation} needs a GPU",
            fix="use eager or sdpa",
            flags=("ds.attn_implementation",),
        )
