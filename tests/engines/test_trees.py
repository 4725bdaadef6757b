"""Sequences as trees in real training processes: losses and gradients of a step are those of the
sequences by themselves."""

import asyncio
import copy
import random

import pytest
import torch
from engines.test_adapters import adapter_of, load, policies_of, run_alone, run_of
from engines.test_gradients import FLAGS, in_parts, stepped, whole
from engines.test_policies import (
    arguments,
    critic_weights,
    in_float32,
    launch,
    load_stage,
    start_with_critic,
    wait,
)
from simulated import DraftAction as Action

from marl_plugins.adapters.backend import SharedBases
from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Generation, Task, Trajectory
from marl_plugins.engine.runtime.batching import BatchBuilder
from marl_plugins.engine.runtime.experience import estimate

STREAMED = "marl_plugins.streaming.worker:AccumulatedGradients"
ESTIMATOR = ReinforcePlusPlus(gamma=0.9)


def branching_rows(tasks, seed):
    """A role's prompt, its tasks, two conversations each of which the second begins as the first
    did."""
    draw, rows = random.Random(seed), []

    def ids(most, least=1):
        return tuple(draw.randrange(3, 259) for _ in range(draw.randint(least, most)))

    def said(before, shown):
        sampled = ids(9)
        logprobs = tuple(-5.5 + draw.random() for _ in sampled)
        generation = Generation(sampled, logprobs, "stop", "p", 0)
        turn = before.turn + 1 if before else 0
        action = Action(f"a.{turn}", "first", "p", turn, shown, generation, "", before=before)
        action.reward = action.returns = draw.random()
        return action

    prompt = ids(40, 20)
    for number in range(tasks):
        task, opening = Task(f"t{number}", "p"), prompt + ids(30)
        first = None
        for sample in range(2):
            trajectory = Trajectory(task, sample, step=1)
            first = said(None, opening) if first is None or number % 2 else first
            trajectory.actions = [first, said(first, ids(5)), said(first, ids(5))]
            mine = trajectory.actions if not sample or number % 2 else trajectory.actions[1:]
            rows += [Row(trajectory, action, action.returns) for action in mine]
    return rows


def as_trees(host, trees):
    host.batching = BatchBuilder(host.args, True, trees)
    host._tried = not trees


@pytest.fixture(scope="module")
def hosts(cluster, relay):
    made = {}
    for ranks in (1, 2):
        flags = [*FLAGS, "--ds.attn_implementation", "sdpa", "--ds.zero_stage", "0"]
        flags += ["--actor.num_gpus_per_node", str(ranks), "--train.micro_batch_size", "3"]
        args = copy.deepcopy(arguments(relay, *flags))
        args.ds.param_dtype = "fp32"
        made[ranks] = launch(args, [STREAMED])
    for host in made.values():
        wait(host)
    yield made
    for host in made.values():
        host.kill()


async def by_parts(host, rows, estimator):
    return await in_parts(host, rows, [rows[:5], rows[5:11], rows[11:]], estimator)


@pytest.mark.parametrize(
    ("ranks", "stage", "way"),
    [
        (1, 1, whole),
        (1, 1, by_parts),
        (2, 0, whole),
        (2, 2, whole),
        (2, 2, by_parts),
        (2, 3, whole),
    ],
)
def test_a_step_is_that_of_the_sequences_by_themselves(hosts, ranks, stage, way):
    host, rows = load_stage(hosts[ranks], stage), branching_rows(5, seed=3)
    steps = {}
    for trees in (False, True):
        host.load()
        wait(host)
        as_trees(host, trees)
        prepared = asyncio.run(way(host, rows, ESTIMATOR))
        metrics, change = stepped(host, prepared)
        steps[trees] = prepared, metrics, change
    (_, without, apart), (_, metrics, together) = steps[False], steps[True]
    assert host.batching.trees  # its model sees them right
    assert apart.norm() > 1e-2
    assert (together - apart).norm() / apart.norm() < 1e-5
    for name in ("reward", "return", "kl", "logprobs_diff", "truncated", "total_length"):
        assert metrics[name] == pytest.approx(without[name], rel=1e-4, abs=1e-6), name
    if way is whole:
        assert metrics["tokens_saved"] > 2 and "tokens_saved" not in without
    if stage:
        assert metrics["actor_grad_norm"] == pytest.approx(without["actor_grad_norm"], rel=1e-5)


@pytest.mark.usefixtures("cluster")
def test_adapters_of_one_model(relay):
    """Each has a tree of its own rows."""
    flags = [*FLAGS, "--ds.attn_implementation", "sdpa", "--ds.zero_stage", "0"]
    args = copy.deepcopy(arguments(relay, *flags))
    args.ds.param_dtype, args.vllm.num_engines = "fp32", 0
    run = run_of(args)
    backend = SharedBases()
    backend.open(run)
    made = policies_of(run, backend)
    for policy in made.values():
        policy.launch()
    in_float32({h for policy in made.values() for h in policy.training.handles()})
    rows = {name: branching_rows(3, seed=n) for n, name in enumerate(made)}

    async def step():
        before = await asyncio.gather(*(policy.weights() for policy in made.values()))
        prepared = [estimate([await made[n].forward(rows[n])], ESTIMATOR)[0] for n in made]
        await asyncio.gather(
            *(policy.update(p, 1, 1) for policy, p in zip(made.values(), prepared, strict=True))
        )
        after = await asyncio.gather(*(policy.weights() for policy in made.values()))
        one, other = ([adapter_of(blob) for blob in blobs] for blobs in (before, after))
        return [
            torch.cat([(b[name] - a[name]).double().flatten() for name in sorted(a)])
            for a, b in zip(one, other, strict=True)
        ]

    steps = {}
    for trees in (False, True):
        load(made)
        for policy in made.values():
            as_trees(policy, trees)
        steps[trees] = run_alone(made, step())
        assert all(policy.batching.trees == trees for policy in made.values())
    for apart, together in zip(steps[False], steps[True], strict=True):
        assert apart.norm() > 0
        assert (together - apart).norm() / apart.norm() < 1e-5
    for policy in made.values():
        policy.kill()


@pytest.mark.usefixtures("cluster")
def test_a_policy_and_its_critic_on_two_ranks(tmp_path):
    """A value is trained where its token stands, in every branch."""
    flags = [*FLAGS, "--ds.attn_implementation", "sdpa", "--ds.zero_stage", "0"]
    flags += ["--critic.adam.lr", "10", "--critic.adam.eps", "1", "--critic.lr_warmup_ratio", "0"]
    host, estimator, _ = start_with_critic(tmp_path, *flags, dtype="fp32")
    rows, steps = branching_rows(5, seed=7), {}
    start = critic_weights(host)
    for trees in (False, True):
        host.load()
        wait(host)
        as_trees(host, trees)
        assert all(torch.equal(a, b) for a, b in zip(critic_weights(host), start, strict=True))
        metrics, change = stepped(host, asyncio.run(whole(host, rows, estimator)))
        of_critic = [
            (after - before).double().flatten()
            for after, before in zip(critic_weights(host), start, strict=True)
        ]
        steps[trees] = metrics, change, torch.cat(of_critic)
    host.kill()
    (without, *apart), (metrics, *together) = steps[False], steps[True]
    assert metrics["tokens_saved"] > 1.5 and "tokens_saved" not in without
    for one, other in zip(apart, together, strict=True):
        assert one.norm() > 1e-3
        assert (other - one).norm() / one.norm() < 1e-5
    for name in ("critic_loss", "return"):  # the mean value is one of micro-batches, upstream's
        assert metrics[name] == pytest.approx(without[name], rel=1e-4), name
