"""Sequences that ranks share (`--ds.ring_attn_size`): the ranks of a ring get the same rows, and
train as one rank does."""

import asyncio
import copy
import sys

import pytest
import ring_attention
import torch
from engines.test_policies import (
    arguments,
    conversation_rows,
    launch,
    prepare,
    recorded_rows,
    wait,
    weights,
)
from ray import cloudpickle

from marl_plugins.engine.processes.upstream_trainer import ranks_of

cloudpickle.register_pickle_by_value(ring_attention)  # used in processes that know no tests
cloudpickle.register_pickle_by_value(sys.modules[__name__])

FLAGS = ["--algo.kl.init_coef", "0", "--ds.attn_implementation", "sdpa", "--ds.packing_samples"]


@pytest.mark.usefixtures("cluster")
def test_a_ring_of_ranks_trains_as_one_rank_does(relay):
    """Two rings of two ranks with ZeRO 3 beside one rank, in float32: log-probs, metrics and
    weights over two steps."""
    made = {}
    for name, ranks, ring, stage in (("alone", 1, 1, 1), ("rings", 4, 2, 3)):
        args = copy.deepcopy(
            arguments(
                relay, "--actor.adam.lr", "1e-3", *FLAGS, "--actor.num_gpus_per_node", str(ranks)
            )
        )
        args.ds.ring_attn_size, args.ds.zero_stage, args.ds.param_dtype = ring, stage, "fp32"
        args.train.batch_size = args.train.micro_batch_size * ranks
        made[name] = launch(args, before=ring_attention.install)
    wait(*made.values())
    assert ranks_of(made["rings"].group) == 2
    for number, rows in enumerate(
        [recorded_rows(9, seed=1), conversation_rows(6, seed=2)], start=1
    ):
        found = {}
        for name, policy in made.items():
            prepared = asyncio.run(prepare(policy, rows))
            found[name] = prepared, asyncio.run(policy.update(prepared, 1, number))
        (one, mine), (two, theirs) = found.values()
        for a, b in zip(one.items, two.items, strict=True):
            torch.testing.assert_close(
                a.action_log_probs, b.action_log_probs, rtol=0, atol=1e-4 if number == 1 else 2e-2
            )
        for metric in ("actor_grad_norm", "return", "response_length", "optimiser_steps"):
            assert theirs[metric] == pytest.approx(mine[metric], rel=1e-2, abs=1e-3), metric
        assert mine["actor_grad_norm"] > 0
    one, two = weights(made["alone"]), weights(made["rings"])
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=2e-5)
    for policy in made.values():
        policy.kill()
