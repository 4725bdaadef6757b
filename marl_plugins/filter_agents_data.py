"""Drop rows until every policy's number of rows fills whole batches, instead of filling up with
weightless rows.

MAPPA's `filter_agents_data` keeps the head of each agent's rows so that all ranks take the same
number of batches. Here the runtime guarantees that anyway (engine/runtime/layout.py), so this
plugin is a choice, not a need: it trades rows for equal batch sizes.

    random     which rows go is drawn anew every step (seeded): no task, role or turn is favoured.
               Default.
    truncate   the last rows in the order of tasks go, as in MAPPA's code; biased against late tasks
               and late turns.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence

from marl_plugins import Row, Run, at_least, derive_seed, hookimpl


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("filter_agents_data (marl_plugins.filter_agents_data)")
    group.add_argument(
        "--filter_agents_data.mode",
        choices=["random", "truncate"],
        default="random",
        help="which rows are dropped: drawn by the seed, or the last in the order of tasks",
    )
    group.add_argument(
        "--filter_agents_data.multiple",
        type=at_least(1),
        default=None,
        metavar="N",
        help="keep a multiple of N rows per policy; a policy with fewer than N rows keeps all. "
        "Default: micro-batch x ranks x optimiser steps, which needs no fill",
    )


@hookimpl
def marl_describe(run: Run) -> dict[str, str]:
    options = run.args.filter_agents_data
    multiple = options.multiple or "micro-batch x ranks x optimiser steps"
    return {
        "filter_agents_data": f"each policy keeps the largest multiple of {multiple} rows "
        f"({options.mode}), or all where it has fewer"
    }


@hookimpl
def marl_select(rows: Sequence[Row], run: Run, steps: int) -> list[Row]:
    options = run.args.filter_agents_data
    keep: set[Row] = set()
    for policy in dict.fromkeys(row.action.policy for row in rows):
        mine = [row for row in rows if row.action.policy == policy]
        chosen = keep_whole_batches(
            mine, options.multiple or _batch(run, policy, steps), options.mode, run.args.train.seed
        )
        keep.update(chosen)
    for row in rows:
        if row not in keep:
            row.action.left_out = "filter_agents_data"
    return [row for row in rows if row in keep]


def _batch(run: Run, policy: str, steps: int) -> int:
    args = run.policy_args[policy]
    devices = args.actor.num_nodes * args.actor.num_gpus_per_node
    return int(args.train.micro_batch_size * devices * steps)


def keep_whole_batches(rows: Sequence[Row], multiple: int, mode: str, run_seed: int) -> list[Row]:
    """Returns the largest multiple of `multiple` rows, in their order; all of them where there are
    fewer than one multiple.

    A policy is never left without rows: with fewer rows than one batch weightless sequences fill
    it.
    """
    count = len(rows) - len(rows) % multiple
    if count in (0, len(rows)):
        return list(rows)
    if mode == "truncate":
        return sorted(rows, key=lambda row: row.order)[:count]
    chosen = random.Random(
        derive_seed(run_seed, "filter", rows[0].trajectory.step, rows[0].action.policy)
    )
    return [rows[i] for i in sorted(chosen.sample(range(len(rows)), count))]
