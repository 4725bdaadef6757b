"""The devices that a run needs."""

from __future__ import annotations

import os

from marl_plugins.core.run import Run
from marl_plugins.engine.hosts.devices import engine_gpus

FEWER = (
    "a shared mapping (--mapping shared), fewer engines (--vllm.num_engines) or ranks "
    "(--actor.num_gpus_per_node), engines and training in turns (--train.colocate_all "
    "--vllm.enable_sleep --ds.enable_sleep), or more GPUs"
)
"""What to do where a run needs more devices than there are."""


def needed_devices(run: Run) -> dict[str, int]:
    """Returns devices by policy, of its engines and its training processes, and what the policies
    share (`ProcessBackend.devices`)."""
    assert run.processes is not None, "the plan has no back-end for training processes"
    needed = {}
    for policy in run.policies:
        args = run.policy_args[policy.name]
        shared = policy.trainable and args.train.colocate_all
        shared = shared or run.processes.engines_of(run, policy.name) != policy.name
        needed[policy.name] = 0 if shared else engine_gpus(args)
    for name, count in run.processes.devices(run).items():
        needed[name] = needed.get(name, 0) + count
    return needed


def shown_devices(run: Run) -> str:
    """Returns the devices by policy, in one line."""
    return ", ".join(f"{name} {count}" for name, count in needed_devices(run).items())


def needed_cpus(run: Run) -> int:
    """Returns CPUs that Ray must have: every device is reserved together with one
    (`engine/processes/placement.py`)."""
    return sum(needed_devices(run).values())


def too_few(run: Run, there: int) -> str:
    """Returns what to do where a run needs more devices than there are."""
    if not there:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if seen is None else f" (CUDA_VISIBLE_DEVICES is {seen!r})"
        return (
            f"make GPUs visible{hidden}, or use a recipe for CPUs: the shipped ones have a "
            "tiny.yaml"
        )
    return FEWER
