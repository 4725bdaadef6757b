"""The devices that a run needs, and what would make it need fewer."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from marl_plugins.core.run import Run
from marl_plugins.engine.hosts.devices import engine_gpus


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


def fewer_devices(run: Run) -> dict[str, int]:
    """Returns what makes a run on GPUs need fewer devices, with their number, the largest first:
    flags of all trained policies."""
    trained = [p.name for p in run.policies if p.trainable]
    if run.device == "cpu" or not trained:
        return {}
    needed = needed_devices(run)
    counts = {
        words: sum(needed_devices(_changed(run, trained, change)).values())
        for words, change in _changes([run.policy_args[name] for name in trained])
    }
    if len(trained) > 1 and run.processes and run.processes.lasting:
        counts["--mapping shared"] = max(needed.values())
    return {
        w: count
        for w, count in sorted(counts.items(), key=lambda item: -item[1])
        if count < sum(needed.values())
    }


def too_few(run: Run, there: int) -> str:
    """Returns what to do where a run needs more devices than there are."""
    if not there:
        seen = os.environ.get("CUDA_VISIBLE_DEVICES")
        hidden = "" if seen is None else f" (CUDA_VISIBLE_DEVICES is {seen!r})"
        return (
            f"make GPUs visible{hidden}, or use a recipe for CPUs: the shipped ones have a "
            "tiny.yaml"
        )
    fitting = [
        f"{words} (needs {count})" for words, count in fewer_devices(run).items() if count <= there
    ]
    if fitting:
        return f"what fits: {' or '.join(fitting)}"
    return (
        "use fewer engines (--vllm.num_engines), fewer ranks (--actor.num_gpus_per_node), a shared "
        "mapping (--mapping shared), or "
        "more GPUs"
    )


Change = Mapping[str, Any]
"""Flags, by group and name, with the value that they get."""


def _changes(trained: Sequence[SimpleNamespace]) -> Iterator[tuple[str, Change]]:
    """Flags with which policies may need fewer devices, as typed and as values."""
    if any(args.train.colocate_all for args in trained):
        return
    share, narrow = {"train.colocate_actor_ref": True}, {"vllm.tensor_parallel_size": 1}
    yield "--train.colocate_actor_ref", share
    yield "--vllm.tensor_parallel_size 1", narrow
    yield "--train.colocate_actor_ref --vllm.tensor_parallel_size 1", {**share, **narrow}
    engines = {engine_gpus(args) for args in trained}
    if len(engines) == 1:
        (count,) = engines
        words = (
            "--train.colocate_all --vllm.enable_sleep --ds.enable_sleep --actor.num_nodes 1 "
            f"--actor.num_gpus_per_node {count}"
        )
        yield (
            words,
            {"train.colocate_all": True, "actor.num_nodes": 1, "actor.num_gpus_per_node": count},
        )


def _changed(run: Run, policies: Collection[str], change: Change) -> Run:
    """The run with other flags of some policies."""
    args = copy.deepcopy(dict(run.policy_args))
    for policy in policies:
        for name, value in change.items():
            group, _, flag = name.partition(".")
            setattr(getattr(args[policy], group), flag, value)
    return replace(run, policy_args=args)
