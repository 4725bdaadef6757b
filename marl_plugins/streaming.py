"""Forward passes of trajectories that have arrived, while the late ones of a rollout still run.

Log-probs, those of the reference and the critic's values depend on a row's tokens alone. They are computed in micro-batches of
fixed membership: all rows of a policy of `--streaming.tasks` consecutive tasks of the step, as soon as all samples of these have
arrived, whichever are first. After the rollout they are taken as they are (`forward(rows, known)` in runtime/policy.py); computed
again is only a sequence of which a turn is not trained on after all, because credit or selection has left it out.

The step is the same as without it. On CPU, with eager attention and without packing, it is so bit for bit: there a row's log-probs
do not depend on what it shares a micro-batch with, if it has at least 16 tokens with its context. Pays where training processes
have devices of their own, which would wait for the rollout, and where `--streaming.tasks` gives every rank some of a policy's rows.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.core.concurrency import all_of
from marl_plugins.core.failures import Remark
from marl_plugins.core.options import at_least
from marl_plugins.core.rows import rows_to_be

if TYPE_CHECKING:
    from marl_plugins.core.processes import PolicyProcesses, RunningRollout
    from marl_plugins.core.trajectory import Trajectory
    from marl_plugins.run import Run

WHO = "marl_plugins.streaming"
SHARING = ("train.colocate_all", "vllm.enable_sleep", "ds.enable_sleep")
"""Flags with which training processes have no devices of their own during a rollout."""


@dataclass
class Streamed:
    """What a run keeps of its last rollout: rows that were computed here, and those of them that were done before its end."""

    rows: int = 0
    hidden: int = 0


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("forward passes beside the rollout (--plugin marl_plugins.streaming)")
    group.add_argument(
        "--streaming.tasks",
        type=at_least(1),
        default=1,
        help="consecutive tasks of a step whose rows are computed together, once all of their samples have arrived",
    )
    group.add_argument(
        "--streaming.until",
        choices=["all", "rollout"],
        default="all",
        help="until when that goes on: until all rows are done, in the same micro-batches whatever arrives first; or until the "
        "rollout ends, and the rest is done at once, in micro-batches that depend on timing",
    )


@hookimpl
def marl_configure(run: Run) -> list[str]:
    sharing = {p.name: [f"--{flag}" for flag in SHARING if _given(run, p.name, flag)] for p in run.policies if p.trainable}
    problems = [
        f"policy {name!r}: {WHO}: its training processes have no devices of their own while engines generate "
        f"({', '.join(flags)}); switch that off for it, or leave out the plugin"
        for name, flags in sharing.items()
        if flags
    ]
    if run.device == "cpu" and not problems:
        return [Remark(f"{WHO}: on CPU engines and training processes share the cores, so it hides nothing")]
    return problems


def _given(run: Run, policy: str, flag: str) -> bool:
    group, name = flag.split(".")
    return bool(getattr(getattr(run.policy_args[policy], group), name))


@hookimpl
async def marl_beside(run: Run, rollout: RunningRollout) -> None:
    streamed = run.state(Streamed)
    streamed.rows = streamed.hidden = 0
    trained = [policy for policy in rollout.policies.values() if policy.spec.trainable]
    await all_of(forward_early(run, policy, rollout, streamed) for policy in trained)


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    streamed = run.state(Streamed)
    metrics |= {"streaming/rows": float(streamed.rows), "streaming/hidden": float(streamed.hidden)}


async def forward_early(run: Run, policy: PolicyProcesses, rollout: RunningRollout, streamed: Streamed) -> None:
    """One policy's forward passes, one after the other: ranks that were asked in different orders would wait for each other."""
    options, samples = run.args.streaming, run.args.rollout.n_samples_per_prompt
    async for trajectories in arriving(rollout, options.tasks, samples):
        if options.until == "rollout" and rollout.ended.is_set():
            return
        if rows := rows_to_be(trajectories, policy.name):
            rollout.keep(await policy.forward(rows))
            streamed.rows += len(rows)
            streamed.hidden += 0 if rollout.ended.is_set() else len(rows)


async def arriving(rollout: RunningRollout, tasks: int, samples: int) -> AsyncIterator[list[Trajectory]]:
    """The trajectories of so many consecutive tasks each, in the order of the step, once the last of them has arrived."""
    there: dict[int, list[Trajectory]] = defaultdict(list)
    async for trajectory in rollout.arrived():
        number = trajectory.place // tasks
        there[number].append(trajectory)
        if len(there[number]) == samples * min(tasks, len(rollout.tasks) - number * tasks):
            yield sorted(there.pop(number), key=lambda t: (t.place, t.sample))
