"""Counts the devices that a policy's processes take, from upstream's flags."""

from __future__ import annotations

from types import SimpleNamespace


def engine_gpus(args: SimpleNamespace) -> int:
    """Returns the devices of a policy's engines."""
    return int(args.vllm.num_engines * args.vllm.tensor_parallel_size)


def training_gpus(args: SimpleNamespace) -> int:
    """Returns the devices of a policy's training processes."""
    return int(args.actor.num_nodes * args.actor.num_gpus_per_node)


def critic_gpus(args: SimpleNamespace) -> int:
    """Returns the devices of a policy's critic; 0 without one, which is upstream's rule
    (train_ppo_ray.py:119)."""
    return (
        int(args.critic.num_nodes * args.critic.num_gpus_per_node)
        if args.critic.model_name_or_path
        else 0
    )


def ranks_of_one_sequence(args: SimpleNamespace) -> int:
    """Returns the training processes that share a sequence, and are given the same rows: upstream's
    `duplicate_actors` (train_ppo_ray.py:90)."""
    return int(args.ds.ring_attn_size * args.ds.tensor_parallel_size)


def shares_with_reference(args: SimpleNamespace) -> bool:
    """Returns whether a policy's reference has processes on its devices (train_ppo_ray.py:43)."""
    return bool(
        args.algo.kl.init_coef > 0 and (args.train.colocate_actor_ref or args.train.colocate_all)
    )


def reference_gpus(args: SimpleNamespace) -> int:
    """Returns the devices of the reference's own processes; 0 where it shares the policy's or is
    not used."""
    if args.algo.kl.init_coef > 0 and not args.train.colocate_actor_ref:
        return int(args.ref.num_nodes * args.ref.num_gpus_per_node)
    return 0
