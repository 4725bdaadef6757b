"""Counts the devices that a policy's processes take, from upstream's flags."""

from __future__ import annotations

from types import SimpleNamespace


def engine_gpus(args: SimpleNamespace) -> int:
    """Devices of a policy's engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def training_gpus(args: SimpleNamespace) -> int:
    """Devices of a policy's training processes."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def critic_gpus(args: SimpleNamespace) -> int:
    """Devices of a policy's critic; 0 without one, which is upstream's rule (train_ppo_ray.py:119)."""
    return int(args.critic.num_nodes * args.critic.num_gpus_per_node) if args.critic.model_name_or_path else 0


def reference_gpus(args: SimpleNamespace) -> int:
    """Devices of the reference's own processes; 0 where it shares the policy's or is not used."""
    if args.algo.kl.init_coef > 0 and not args.train.colocate_actor_ref:
        return int(args.ref.num_nodes * args.ref.num_gpus_per_node)
    return 0
