"""The devices that a run needs."""

from __future__ import annotations

from marl_plugins.hosts.devices import engine_gpus
from marl_plugins.run import Run


def needed_devices(run: Run) -> dict[str, int]:
    """Devices by policy, of its engines and its training processes, and what the policies share (`ProcessBackend.devices`)."""
    assert run.processes is not None, "the plan has no back-end for training processes"
    needed = {}
    for policy in run.policies:
        args = run.policy_args[policy.name]
        shared = policy.trainable and args.train.colocate_all and run.processes.lasting
        needed[policy.name] = 0 if shared else engine_gpus(args)
    for name, count in run.processes.devices(run).items():
        needed[name] = needed.get(name, 0) + count
    return needed


def shown_devices(run: Run) -> str:
    """The devices by policy, in one line."""
    return ", ".join(f"{name} {count}" for name, count in needed_devices(run).items())
