"""Weight sync on GPUs in a few large pieces: one call and one transfer for many parameters.

Upstream brings a policy's weights to its engines parameter by parameter, and waits for each
(ppo_actor.py:409-490): several hundred calls a sync. Here those of one dtype travel together, at
most `--flat_sync.mb` at a time (worker.py), on the group that upstream has made; where engines
share their devices with training processes, as one handle per rank. Engines hold the same weights
afterwards, bit for bit.

Off unless it is named: the recorded run on a GPU had one device and a tiny model
(docs/gpu_results.md). On a machine without GPUs the whole state is one object anyway, and the
plugin changes nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING

from marl_plugins import Problem, at, at_least, hookimpl

# inside: works in the training processes
from marl_plugins.engine.hosts.devices import training_gpus

if TYPE_CHECKING:
    from marl_plugins import Run

may_differ = ("flat_sync.*",)


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "weight sync on GPUs in large pieces (--plugin marl_plugins.flat_sync)"
    )
    group.add_argument(
        "--flat_sync.mb",
        type=at_least(1),
        default=512,
        metavar="MB",
        help="parameters of one dtype that travel together; memory of that size is needed on the "
        "first rank and in every engine",
    )


@hookimpl
def marl_extensions(run: Run) -> Sequence[str]:
    return [f"{__name__}.worker:FlatSync"] if run.device == "cuda" else []


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    who = at(plugin="marl_plugins.flat_sync")
    if run.device == "cpu":
        got = "on CPU the whole state is one object anyway"
        fix = "leave out the plugin: it is for GPUs"
        return [Problem("flat_sync.cpu", who, got, fix=fix, severity="warning")]
    if any(run.policy_args[p.name].ds.lora.rank for p in run.policies if p.trainable):
        got, fix = (
            "adapters go to engines as bytes, without a broadcast that large pieces could replace",
            "leave out the plugin",
        )
        return [Problem("flat_sync.adapters", who, got, fix=fix, flags=("ds.lora.rank",))]
    if run.args.vllm.sync_with_ray:
        got = "--vllm.sync_with_ray uses groups of Ray's, and this plugin torch's"
        return [
            Problem(
                "flat_sync.ray", who, got, fix="leave out either", flags=("vllm.sync_with_ray",)
            )
        ]
    if all(_recorded(run.policy_args[p.name]) for p in run.policies if p.trainable):
        return []
    got = (
        "its recorded run on a GPU had one training process, which shared a device with the "
        "engine, without ZeRO 3"
    )
    return [
        Problem(
            "flat_sync.unrecorded",
            who,
            got,
            fix="without it the sync is upstream's own",
            severity="warning",
        )
    ]


def _recorded(args: SimpleNamespace) -> bool:
    """Returns whether a policy's weight sync goes the way of the recorded run
    (docs/gpu_results.md)."""
    return bool(args.train.colocate_all and training_gpus(args) == 1 and args.ds.zero_stage < 3)
