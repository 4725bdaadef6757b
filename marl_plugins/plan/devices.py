"""The devices that a run needs."""

from __future__ import annotations

from marl_plugins.hosts.devices import critic_gpus, engine_gpus, reference_gpus, training_gpus
from marl_plugins.run import Run


def needed_devices(run: Run) -> dict[str, int]:
    """Devices by policy: training processes, critic, engines, and, on GPUs, reference processes of their own; and the seats."""
    needed = {}
    for policy in run.policies:
        args = run.policy_args[policy.name]
        if not policy.trainable or run.seating is not None:
            needed[policy.name] = engine_gpus(args)
        elif args.train.colocate_all:
            needed[policy.name] = training_gpus(args)
        else:
            reference = 0 if run.device == "cpu" else reference_gpus(args)
            needed[policy.name] = training_gpus(args) + critic_gpus(args) + engine_gpus(args) + reference
    if run.seating is not None and any(policy.trainable for policy in run.policies):
        needed["seats of training processes"] = run.seating.total
    return needed


def shown_devices(run: Run) -> str:
    """The devices by policy, in one line."""
    return ", ".join(f"{name} {count}" for name, count in needed_devices(run).items())
