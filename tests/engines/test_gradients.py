"""Gradients beside a rollout in real training processes: the weights after the step are those
without it."""

import asyncio
import copy

import pytest
import torch
from engines.test_policies import arguments, launch, load_stage, recorded_rows, wait, weights

from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.engine.runtime.experience import estimate
from marl_plugins.streaming.gradients import GradientAccumulation

FLAGS = [
    "--actor.adam.lr",
    "10",
    "--actor.adam.eps",
    "1",
    "--actor.lr_warmup_ratio",
    "0",
    "--algo.kl.init_coef",
    "0.05",
]
"""With this eps Adam's first step is the gradient itself, where it is small, and not its sign."""


@pytest.fixture(scope="module")
def hosts(cluster, relay):
    found = {}
    for ranks in (1, 2):
        flags = [
            *FLAGS,
            "--ds.zero_stage",
            "0",
            "--actor.num_gpus_per_node",
            str(ranks),
            "--train.micro_batch_size",
            "3",
        ]
        args = copy.deepcopy(arguments(relay, *flags))
        args.train.batch_size, args.ds.param_dtype = 3 * ranks, "fp32"
        found[ranks] = launch(args, ["marl_plugins.streaming.worker:AccumulatedGradients"])
    for host in found.values():
        wait(host)
    yield found
    for host in found.values():
        host.kill()


async def whole(host, rows, estimator):
    (prepared,) = estimate([await host.forward(rows)], estimator)
    return prepared


async def in_parts(host, rows, parts, estimator):
    """Some of the rows learned from before the others are there."""

    gradients, known = GradientAccumulation(estimator, {"p": host}, {"": 0.4}), []
    for part in parts:
        gradients.note_returns(part)
        known.append(await host.forward(part))
        await gradients.add(known[-1])
    (prepared,) = estimate([await host.forward(rows, known)], estimator)
    return gradients.prepared([prepared])[0]


def stepped(host, prepared):
    before = weights(host)
    metrics = asyncio.run(host.update(prepared, 1, 1))
    after = weights(host)
    return metrics, torch.cat(
        [(after[name] - before[name]).double().flatten() for name in sorted(before)]
    )


@pytest.mark.parametrize(
    ("ranks", "stage", "late"), [(1, 0, 0), (1, 1, 4), (2, 0, 4), (2, 2, 0), (2, 2, 4)]
)
def test_the_weights_after_the_step_are_those_without_it(hosts, ranks, stage, late):
    host, rows, estimator = (
        load_stage(hosts[ranks], stage),
        recorded_rows(17, seed=2),
        ReinforcePlusPlus(gamma=0.9),
    )

    def fresh():
        host.load()
        wait(host)

    fresh()
    metrics, without = stepped(host, asyncio.run(whole(host, rows, estimator)))
    fresh()
    early = rows[: len(rows) - late]
    prepared = asyncio.run(in_parts(host, rows, [early[:1], early[1:8], early[8:]], estimator))
    assert len(prepared.excluded) == len(early)
    found, with_it = stepped(host, prepared)
    assert without.norm() > 1e-2
    assert (with_it - without).norm() / without.norm() < 2e-6
    for name in (
        "reward",
        "return",
        "kl",
        "logprobs_diff",
        "response_length",
        "truncated",
        "total_length",
    ):
        assert found[name] == pytest.approx(metrics[name], rel=1e-5, abs=1e-7), name
    if stage:
        assert found["actor_grad_norm"] == pytest.approx(metrics["actor_grad_norm"], rel=1e-5)
    assert found["carried"] == len(early) and "carried" not in metrics
