"""Real training processes, and one engine: equality with upstream's own step, the grid on
DeepSpeed, weights that are followed."""

import asyncio
import copy
import dataclasses
import itertools
import json
import os
import random
import signal
import socket
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import ray
import safetensors.torch
import torch
from engines.relay import wait_until
from simulated import DraftAction as Action
from simulated import conversations

from marl_plugins.builtin.gae import Gae
from marl_plugins.builtin.groups import ESTIMATORS
from marl_plugins.builtin.reinforce_pp import FlashReinforce, ReinforcePlusPlus
from marl_plugins.core.estimators import WhitenedAdvantages
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.policy import Policy
from marl_plugins.core.rows import Row, rows_of, rows_to_be
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.trajectory import Generation, Task, Trajectory
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.hosts.devices import training_gpus
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.processes.engines import RestartBudget
from marl_plugins.engine.processes.launch import all_streamed as all_of
from marl_plugins.engine.processes.pieces import joined
from marl_plugins.engine.processes.upstream_trainer import ExperienceMaker, RemoteExperienceMaker
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.engine.runtime.batching import upstream_order
from marl_plugins.engine.runtime.checkpoints import Checkpoints, tag
from marl_plugins.engine.runtime.crediting import check_versions
from marl_plugins.engine.runtime.experience import estimate, forwarded, row_experience
from marl_plugins.engine.runtime.layout import Limit, plan_layout
from marl_plugins.engine.runtime.penalties import apply_length_penalties
from marl_plugins.engine.runtime.policy import UpstreamPolicy, start, wait_until_loaded
from marl_plugins.engine.runtime.session import Session
from marl_plugins.engine.runtime.tiny_model import resolve

from openrlhf.trainer.ppo_utils.experience import split_experience_batch  # isort: skip  # after the host support
from openrlhf.trainer.ppo_utils.replay_buffer import remove_padding_in_sequences  # isort: skip

SUMS = Path(__file__).resolve().parent.parent / "recipes" / "sums" / "tiny.yaml"


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("reinforce", ReinforcePlusPlus(gamma=0.9)),
        ("flash_reinforce", FlashReinforce()),
        *[(name, estimator()) for name, estimator in ESTIMATORS.items()],
        ("gae", Gae(gamma=0.9, lambd=0.8)),
    ],
)
@pytest.mark.parametrize("divide", [True, False])
def test_every_estimator_is_upstreams_for_one_role_and_one_action(relay, name, estimator, divide):
    """Advantages and returns of the same experiences by upstream's `compute_advantages_and_returns`
    and by ours."""
    args = copy.deepcopy(arguments(relay))
    (
        args.rollout.n_samples_per_prompt,
        args.algo.advantage.estimator,
        args.algo.advantage.no_std_norm,
    ) = 4, name, not divide
    args.algo.advantage.gamma, args.algo.advantage.lambd = estimator.gamma, 0.8
    args.reward.overlong_buffer_len, args.reward.clip_range = 3, [-0.5, 0.6]
    args.rollout.max_new_tokens = 9
    if isinstance(estimator, WhitenedAdvantages):
        estimator = dataclasses.replace(estimator, divide=divide)
    rows = recorded_rows(24, seed=5)
    for n, row in enumerate(rows):
        row.trajectory.task, row.trajectory.sample = Task(f"t{n // 4}", "p"), n % 4
        row.action.shown_ids = rows[4 * (n // 4)].action.shown_ids
    maker = object.__new__(RemoteExperienceMaker)
    maker.args, maker.tokenizer, maker.advantage_estimator = (
        args,
        SimpleNamespace(pad_token_id=0),
        name,
    )
    maker.strategy, maker.kl_ctl = SimpleNamespace(args=args), SimpleNamespace(value=0.1)
    ours = maker.split_rollout_samples([row_experience(row) for row in rows])
    draw = torch.Generator().manual_seed(0)
    for e in ours:
        e.kl, e.values = torch.randn(2, *e.action_mask.shape, generator=draw) * e.action_mask
        e.action_log_probs = torch.zeros(e.action_mask.shape)
        e.info["logprobs_diff"] = torch.zeros(len(e.action_mask))
    theirs = maker.compute_advantages_and_returns(copy.deepcopy(ours))
    apply_length_penalties(ours, args)
    for row, reward in zip(rows, torch.cat([e.rewards for e in ours]).tolist(), strict=True):
        row.reward = reward
    sequences = sequences_of(rows)
    batches = [(sequences[4 * n : 4 * n + 4], e) for n, e in enumerate(ours)]
    found = forwarded("p", rows, batches, 0.1, args.reward.clip_range)
    (prepared,) = estimate([found], estimator)
    items = [item for other in theirs for item in split_experience_batch(other)]
    remove_padding_in_sequences(items)
    for mine, other in zip(prepared.items, items, strict=True):
        mask = mine.action_mask.bool()
        assert mask.sum() > 0
        torch.testing.assert_close(
            mine.advantages[mask], other.advantages[mask], rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(mine.returns[mask], other.returns[mask], rtol=1e-5, atol=1e-5)
        assert mine.info["return"] == pytest.approx(float(other.info["return"]), rel=1e-5, abs=1e-5)
    again = estimate([found], estimator)[0].items  # what was forwarded may be estimated again
    assert all(
        torch.equal(a.advantages, b.advantages) for a, b in zip(prepared.items, again, strict=True)
    )


def arguments(relay, *flags):
    """The flags of a policy, as a run has them."""
    words = [
        "--recipe",
        str(relay),
        "--mapping",
        "first=p,second=p,judge=q",
        "--rollout.batch_size",
        "16",
    ]
    words += [
        "--train.batch_size",
        "8",
        "--rollout.micro_batch_size",
        "4",
        "--train.micro_batch_size",
        "2",
        *flags,
    ]
    recipe = relay / "policies.yaml"
    recipe.write_text("extends: recipe.yaml\nmodel: tiny\n")
    text = (relay / "recipe.yaml").read_text()
    begin, end = text.index("policies:"), text.index("flags:\n  rollout")
    (relay / "recipe.yaml").write_text(text)
    bare = relay / "bare.yaml"
    bare.write_text(text[:begin] + text[end:])
    run = build_plan(["--recipe", str(bare), *words[2:]]).run
    args = run.policy_args["p"]
    args.actor.model_name_or_path = resolve("tiny")
    return args


def in_float32(handles):
    """Lets training processes that have not loaded yet do so in float32: upstream trains in
    bfloat16 or float16 only; there a last bit of difference grows with every step."""

    def patch(actor):  # a local one is pickled whole: processes do not know this module
        import openrlhf.utils.utils
        import torch

        openrlhf.utils.utils.convert_to_torch_dtype = lambda name: torch.float32

    ray.get([handle.__ray_call__.remote(patch) for handle in handles])


def launch(args, extensions=(), before=None):
    """A policy's training processes without engines, still loading.

    Args:
        before: Called in each of them before anything is loaded.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path)
    args.vllm.num_engines = 0
    policy = UpstreamPolicy(
        Policy("p", "tiny"),
        args,
        "cpu",
        tokenizer,
        100,
        RestartBudget(0),
        600.0,
        extensions=extensions,
    )
    policy.launch()
    if before is not None:
        ray.get(
            [
                handle.__ray_call__.remote(lambda actor: before())
                for handle in policy.training.handles()
            ]
        )
    if args.ds.param_dtype == "fp32":
        in_float32(policy.training.handles())
    policy.load()
    return policy


def wait(*policies):
    """Waits until policies that were launched have loaded."""
    wait_until_loaded(policies, 600.0)


@pytest.fixture(scope="module")
def hosts(cluster, relay):
    """Ours and one driven by upstream's loop, one rank each; and one on two ranks, whose ZeRO stage
    `load_stage` sets."""
    stage1 = ["--ds.zero_stage", "1"]  # DeepSpeed reports no gradient norm for float32 without ZeRO
    two_ranks = [
        "--ds.zero_stage",
        "0",
        "--actor.num_gpus_per_node",
        "2",
        "--train.micro_batch_size",
        "3",
    ]
    settings = {"ours": stage1, "upstream": stage1, "two_ranks": two_ranks}
    launched = {}
    for name, flags in settings.items():
        args = copy.deepcopy(
            arguments(relay, "--actor.adam.lr", "1e-3", "--algo.kl.init_coef", "0.05", *flags)
        )
        if name == "two_ranks":
            args.train.batch_size = args.train.micro_batch_size * training_gpus(args)
        else:
            args.ds.param_dtype = "fp32"
        launched[name] = launch(args)
    wait(*launched.values())
    yield launched
    for policy in launched.values():
        policy.kill()


def load_stage(host, stage):
    """Load the model again under another ZeRO stage, in the same processes: starting others takes
    half a minute."""
    if host.args.ds.zero_stage != stage:
        host.args.ds.zero_stage = stage
        host.load()
        wait(host)
    return host


def recorded_rows(count, seed):
    """Rollouts as they would have been recorded: ragged, with several turns' worth of contexts."""
    draw = random.Random(seed)
    rows = []
    for n in range(count):
        trajectory = Trajectory(Task(f"t{n}", "p"), 0, step=1)
        ids = tuple(draw.randrange(3, 259) for _ in range(draw.randint(1, 9)))
        generation = Generation(
            ids, tuple(-5.5 + draw.random() for _ in ids), draw.choice(["stop", "length"]), "p", 0
        )
        context = tuple(draw.randrange(3, 259) for _ in range(draw.randint(2, 30)))
        action = Action("a", "first", "p", 0, context, generation, "")
        action.reward = action.returns = draw.random()
        trajectory.actions.append(action)
        rows.append(Row(trajectory, action, action.returns))
    return rows


async def small_pieces(host):
    """A policy's weights in pieces of 100 kB, which with ZeRO 3 are gathered one by one."""
    streams = host.group.async_run_method("pieces", "", 100_000)
    by_rank = await asyncio.gather(*map(all_of, streams))
    assert [len(pieces) > 5 for pieces in by_rank] == [True, *[False] * (len(by_rank) - 1)]
    return by_rank[0]


def weights(host):
    return safetensors.torch.load(joined(ray.get(asyncio.run(small_pieces(host)))))


async def prepare(host, rows, estimator=None):
    """Everything up to the update."""
    (prepared,) = estimate([await host.forward(rows)], estimator or ReinforcePlusPlus())
    return prepared


async def step(host, rows, k, number=1):
    return await host.update(await prepare(host, rows), k, number)


def test_one_policy_is_upstreams_own_step_over_three_steps(hosts):
    """The same rollouts through our step and through `BasePPOTrainer.train_step`: losses, norms and
    weights agree."""
    from openrlhf.trainer.ppo_trainer import BasePPOTrainer
    from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker

    ours, theirs = hosts["ours"], hosts["upstream"]
    t = theirs.trainer
    t.experience_maker = RemoteExperienceMaker(
        t.actor_model_group, None, None, t.reference_model_group, t.kl_ctl, t.strategy, t.tokenizer
    )
    for number in range(1, 4):
        rows = recorded_rows(16, seed=number)
        mine = asyncio.run(step(ours, rows, 2, number))
        seed = derive_seed(ours.args.train.seed, "fit", number, "p")  # shuffling seeded alike
        shuffled = upstream_order(seed, 1)(0, 16)
        pairs = [tuple(shuffled[i : i + 2]) for i in range(0, 16, 2)]
        ray.get(theirs.group.async_run_method("lay_out", [pairs]))
        ray.get(theirs.group.async_run_method("prepare_fit", 4, seed))
        status, _ = BasePPOTrainer.train_step(t, [row_experience(row) for row in rows], number)
        # Not `policy_loss` and `ppo_kl`, which upstream weighs by the tokens of each micro-batch:
        # those are cut differently.
        for name in ("actor_grad_norm", "kl", "return", "response_length", "actor_lr"):
            assert mine[name] == pytest.approx(status[name], abs=1e-6, rel=1e-6), (number, name)
        assert mine["actor_grad_norm"] > 0
        one, two = weights(ours), weights(theirs)
        for name in one:
            torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_any_number_of_rows_takes_exactly_k_steps_on_two_ranks(hosts, stage):
    """For random counts: K optimiser steps, every rank the same rows, nothing carried over
    (asserted after every fit)."""
    host, draw = load_stage(hosts["two_ranks"], stage), random.Random(stage)
    for trial, count in enumerate([1, 2, 5, 6, 7, *(draw.randint(1, 40) for _ in range(7))]):
        k = draw.randint(1, 4)
        rows = recorded_rows(count, seed=100 * stage + trial)
        layout = layout_of(rows, 2, 3, k)
        metrics = asyncio.run(step(host, rows, k, trial))
        assert metrics["optimiser_steps"] == layout.steps == min(k, count)
        assert metrics["micro_batches"] == layout.steps * layout.accumulation
        assert metrics["fill_rows"] == layout.fill


def test_ranks_that_share_the_weights_load_the_same_ones(hosts):
    """Two ranks with ZeRO 3 beside two that hold all weights each: the same bits, and log-probs as
    near as bfloat16
    allows: DeepSpeed has products of its own there (zero/linear.py)."""
    host, rows, found = hosts["two_ranks"], recorded_rows(9, seed=4), []
    for stage in (0, 3):
        host.args.ds.zero_stage = stage
        host.load()
        wait(host)
        found.append((weights(host), asyncio.run(host.forward(rows)).tokens))
    (one, mine), (two, theirs) = found
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    torch.testing.assert_close(mine.log_probs, theirs.log_probs, rtol=0, atol=2e-2)


def test_weightless_rows_change_neither_the_gradient_nor_any_mean(hosts):
    """The same rows with and without fill, on one rank: the same gradient norm and logged means.

    Not `policy_loss`: upstream weighs each micro-batch's share of the loss by its tokens once more,
    so the logged number depends on how rows are cut into micro-batches, with or without fill.
    """
    host = hosts["ours"]
    rows, found = recorded_rows(7, seed=9), []
    freeze(host)
    for micro in (1, 2, 4, 7):
        host.args.train.micro_batch_size = micro
        resize(host, micro)
        metrics = asyncio.run(step(host, rows, k=1))
        assert metrics["fill_rows"] == 0
        found.append(metrics)
    host.args.train.micro_batch_size = 2
    resize(host, 2)
    thaw(host)
    for name in ("reward", "return", "response_length", "total_length", "kl"):
        values = [m[name] for m in found]
        assert values == pytest.approx([values[0]] * 4, rel=1e-3, abs=1e-5), name
    norms = [m["actor_grad_norm"] for m in found]
    assert norms[0] > 0
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-4)


def conversation_rows(count, seed):
    """Rows of random conversation trees, in the models' vocabulary."""
    rows = []
    for number in range(count):
        trajectory = conversations(1000 * seed + number, turns=number % 6 + 1)
        trajectory.task = Task(f"t{number}", "p")
        for action in trajectory.actions:
            action.role, action.shown_ids = "first", tuple(3 + i % 256 for i in action.shown_ids)
            ids = tuple(3 + i % 256 for i in action.generation.ids)
            action.generation = dataclasses.replace(
                action.generation, ids=ids, logprobs=tuple(-5.5 for _ in ids)
            )
            action.reward = action.returns = derive_seed(number, action.path) % 7 / 7
        rows += [Row(trajectory, action, action.returns) for action in trajectory.actions]
    return rows


def pack(host, packed):
    """Switch the packing of samples on or off in the models of a policy."""

    def work(actor):
        for model in (actor.actor, actor.reference.model):
            model.packing_samples = packed

    host.args.ds.packing_samples = packed
    inside(host, work)


@pytest.mark.parametrize(
    ("name", "stage", "near"), [("ours", 1, 1e-5), ("two_ranks", 0, 2e-2), ("two_ranks", 2, 2e-2)]
)
def test_merged_packed_and_by_tokens_the_gradient_is_that_of_single_padded_rows(
    hosts, name, stage, near
):
    """`two_ranks` computes in bfloat16."""
    host, rows, found = hosts[name], conversation_rows(12, seed=7), {}
    if name == "two_ranks":
        load_stage(host, stage)
    freeze(host)
    host.args.train.max_tokens_per_gpu = 70
    for merge, packed, by_tokens in itertools.product([False, True], repeat=3):
        host.batching.merge, host.batching.token_sized = merge, by_tokens
        pack(host, packed)
        found[merge, packed, by_tokens] = asyncio.run(step(host, rows, 1))
    pack(host, False)
    host.batching.merge, host.batching.token_sized = True, False
    thaw(host)
    single = found[False, False, False]
    assert (
        single["sequences"]
        == len(rows)
        > found[True, False, False]["sequences"]
        == len(sequences_of(rows))
    )
    assert single["actor_grad_norm"] > 0
    for metrics in found.values():
        assert metrics["optimiser_steps"] == 1
        for key in ("actor_grad_norm", "kl", "return", "reward", "response_length"):
            assert metrics[key] == pytest.approx(single[key], rel=near, abs=near), key


def layout_of(rows, ranks, micro, steps):
    return plan_layout([len(s.ids) for s in sequences_of(rows)], ranks, steps, Limit(micro))


def inside(host, function):
    """Run a function in every training process of a policy."""
    ray.get([handle.__ray_call__.remote(function) for handle in host.group._actor_handlers])


def freeze(host):
    """Learning rate 0 until `thaw`, whatever the schedule says."""

    def work(actor):
        engine = actor.actor.model
        actor.kept = engine.lr_scheduler, [g["lr"] for g in engine.optimizer.param_groups]
        engine.lr_scheduler = None
        for g in engine.optimizer.param_groups:
            g["lr"] = 0.0

    inside(host, work)


def thaw(host):
    def work(actor):
        engine = actor.actor.model
        engine.lr_scheduler, rates = actor.kept
        for g, rate in zip(engine.optimizer.param_groups, rates, strict=True):
            g["lr"] = rate

    inside(host, work)


def resize(host, micro):
    """Another micro-batch size for the policy's training."""

    def work(actor):
        actor.strategy.micro_train_batch_size = micro
        actor.actor.model.set_train_micro_batch_size(micro)

    inside(host, work)


def test_learning_rate_0_changes_no_weight(hosts):
    host = hosts["ours"]
    before = weights(host)
    freeze(host)
    metrics = asyncio.run(step(host, recorded_rows(5, seed=3), k=2))
    thaw(host)
    assert metrics["actor_grad_norm"] > 0
    after = weights(host)
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_perturbing_a_masked_token_changes_no_loss(hosts):
    """Advantages and log-probs outside the mask may be anything, and so may the ids that follow the
    last sampled token."""
    host, rows = hosts["ours"], recorded_rows(6, seed=4)
    freeze(host)
    losses = []
    for perturb in (False, True):
        prepared = asyncio.run(prepare(host, rows))
        if perturb:
            for item in prepared.items:
                shown = item.action_mask == 0
                for name in ("advantages", "returns", "action_log_probs", "rollout_log_probs"):
                    getattr(item, name)[shown] += 7.0
        metrics = asyncio.run(host.update(prepared, 1, 1))
        losses.append((metrics["policy_loss"], metrics["actor_grad_norm"]))
    thaw(host)
    assert losses[0] == losses[1]


def test_and_perturbing_a_sampled_one_does(hosts):
    host, rows = hosts["ours"], recorded_rows(6, seed=4)
    freeze(host)
    losses = []
    for perturb in (False, True):
        prepared = asyncio.run(prepare(host, rows))
        if perturb:
            item = prepared.items[0]
            item.advantages[item.action_mask == 1] += 0.5
        losses.append(asyncio.run(host.update(prepared, 1, 1))["policy_loss"])
    thaw(host)
    assert losses[0] != losses[1]


def test_several_batches_of_one_policy_are_prepared_before_either_is_trained(hosts):
    """Nothing of a step waits in the policy: two prepared one after the other train as each does
    alone."""
    host = hosts["ours"]
    one, two = recorded_rows(5, seed=31), recorded_rows(6, seed=32)
    freeze(host)
    alone = [asyncio.run(step(host, rows, 1)) for rows in (one, two)]
    first, second = asyncio.run(prepare(host, one)), asyncio.run(prepare(host, two))
    together = [asyncio.run(host.update(prepared, 1, 1)) for prepared in (second, first)][::-1]
    thaw(host)
    for name in ("policy_loss", "actor_grad_norm", "reward", "return"):
        assert [m[name] for m in together] == [m[name] for m in alone], name


def test_a_replayed_row_is_trained_again(hosts):
    """A row may be in several values, read back from its record too."""
    host, (row, *rest) = hosts["ours"], recorded_rows(4, seed=33)
    row.trajectory.task = Task("t0", "p")
    again = from_record(json.loads(json.dumps(to_record(row.trajectory))))
    replayed = Row(again, again.actions[0], row.reward)
    freeze(host)
    metrics = [asyncio.run(step(host, [first, *rest], 1)) for first in (row, replayed)]
    thaw(host)
    assert metrics[0] == metrics[1]


def test_joint_normalisation_over_two_real_policies(hosts):
    """Advantages of two policies' real rows, KL penalty included, against float64 over both."""
    one, two = hosts["ours"], hosts["two_ranks"]
    forwarded = [
        asyncio.run(one.forward(recorded_rows(5, seed=21))),
        asyncio.run(two.forward(recorded_rows(9, seed=22))),
    ]
    items = [item for p in estimate(forwarded, ReinforcePlusPlus()) for item in p.items]
    flat = torch.cat([item.returns[item.action_mask.bool()].double() for item in items])
    for item in items:
        chosen = item.action_mask.bool()
        want = (item.returns[chosen].double() - flat.mean()) / flat.std(unbiased=False)
        torch.testing.assert_close(item.advantages[chosen].double(), want, rtol=1e-5, atol=1e-6)


def test_a_loss_that_is_not_finite_ends_the_run_before_anything_is_synced(hosts):
    host, rows = hosts["ours"], recorded_rows(3, seed=5)
    freeze(host)
    prepared = asyncio.run(prepare(host, rows))
    prepared.items[1].advantages[:] = float("nan")
    with pytest.raises(
        RunEnded,
        match=r"policy 'p', step \d+: policy_loss is not finite \(3 rows, the first t0/0/a\)",
    ):
        asyncio.run(host.update(prepared, 1, 1))


def record_weights(host):
    """Have every training process keep the weights of rank 0 as they are, and after each optimiser
    step."""

    def work(actor):
        def now():
            return b"".join(buffer for piece in actor.pieces() for buffer in piece)

        own, actor.seen = actor.strategy.optimizer_step, [now()]

        def optimizer_step(*args, **named):
            before = actor.engine.global_steps
            own(*args, **named)
            if actor.engine.global_steps > before:
                actor.seen.append(now())

        actor.strategy.optimizer_step = optimizer_step

    inside(host, work)


def average_of(seen, beta):
    """In float64, beginning with the first."""
    found = {name: value.double() for name, value in seen[0].items()}
    for now in seen[1:]:
        found = {
            name: beta * value + (1 - beta) * now[name].double() for name, value in found.items()
        }
    return found


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_the_average_of_weights_is_taken_of_every_optimiser_step_on_two_ranks(
    hosts, stage, tmp_path
):
    """Of fits of two steps with several micro-batches each; engines and folders get it, and the
    weights come back."""
    host = hosts["two_ranks"]
    host.training.extensions, host.args.ds.zero_stage = (
        ("marl_plugins.builtin.ema.worker:WeightAverage",),
        stage,
    )
    host.args.train.ema_beta, host.args.train.enable_ema = 0.7, True
    host.load()
    wait(host)
    host.training.extensions, host.args.train.enable_ema = (), False
    record_weights(host)
    for number in range(2):
        metrics = asyncio.run(step(host, recorded_rows(20, seed=60 + number), 2, number))
        assert metrics["optimiser_steps"] == 2 < metrics["micro_batches"]
    first, *_ = host.group._actor_handlers
    seen = [
        safetensors.torch.load(blob)
        for blob in ray.get(first.__ray_call__.remote(lambda actor: actor.seen))
    ]
    assert len(seen) == 5
    wanted = average_of(seen, 0.7)
    asked = [
        h.__ray_call__.remote(lambda actor: actor.extensions[0].state())
        for h in host.group._actor_handlers
    ]
    shares = ray.get(asked)
    for name, value in wanted.items():
        kept = torch.cat([share[name] for share in shares]).double()
        assert torch.allclose(kept, value.flatten(), rtol=1e-6, atol=1e-8), name
    blob = joined(ray.get(asyncio.run(host.further("WeightAverage"))))
    asyncio.run(host.save_model(tmp_path, "WeightAverage"))
    saved = safetensors.torch.load_file(tmp_path / "p" / "model.safetensors")
    for name, value in safetensors.torch.load(blob).items():
        assert (
            torch.equal(value, wanted[name].float().to(value.dtype))
            or (value - wanted[name]).abs().max() < 1e-3
        )
        assert torch.equal(saved[name], value)
    assert all(torch.equal(value, seen[-1][name]) for name, value in weights(host).items())


def test_a_follower_answers_as_the_version_that_it_holds(hosts):
    """The only engine of this module; its log-probs are the trainer's at that version, and earlier
    answers come again."""
    followed = hosts["two_ranks"]
    args = copy.deepcopy(followed.args)
    args.vllm.num_engines = 1
    spec = Policy("q", "tiny", trainable=False, follows="p")
    follower = UpstreamPolicy(
        spec, args, "cpu", followed.processes.tokenizer, 100, RestartBudget(0), 600.0
    )
    follower.followed = followed
    start([follower], 600.0)

    async def answers():
        """What its engine says to eight contexts, as rows of the policy that it follows."""
        rows, sampling = recorded_rows(8, seed=40), Sampling(1.0, 1.0, 8, 256)
        for seed, row in enumerate(rows):
            call = Call(
                "q",
                row.action.shown_ids,
                sampling,
                8,
                seed,
                "first",
                row.trajectory.task.id,
                0,
                "a",
                1,
            )
            row.action.generation = await follower.engines.generate(
                call, lambda engines: engines[0]
            )
        return rows

    def sampled(rows):
        generations = [row.action.generation for row in rows]
        assert {(g.policy, g.version) for g in generations} == {("q", follower.version)}
        return [g.ids for g in generations], [p for g in generations for p in g.logprobs]

    async def compare():
        original = await follower.weights()
        assert await follower.sync(1)
        early = await answers()
        ids, logprobs = sampled(early)
        assert (await followed.forward(early)).drift < 0.01
        for number in range(1, 5):
            await step(followed, recorded_rows(12, seed=40 + number), 2, number)
        assert sampled(await answers())[0] == ids  # until it is synced
        assert await follower.give(await small_pieces(followed), 2)
        late = await answers()
        new, old = [(await followed.forward(rows)).drift for rows in (late, early)]
        assert new < 0.01 and old > 3 * new
        (engine,) = follower.engines.engines
        assert await follower.hold(original, 1)
        again = [sampled(await answers())]
        await engine.handle.load_state.remote(
            await followed.processes.weights(), "q", 2
        )  # as one that has just been started
        await follower.restore_engine(engine.handle)
        again.append(sampled(await answers()))
        for same, near in again:
            assert same == ids and near == pytest.approx(logprobs, abs=1e-2)

    try:
        asyncio.run(compare())
    finally:
        follower.kill()


@pytest.fixture
def with_critic(cluster, tmp_path):
    """The policy of the recipe `sums` on one rank and its critic on two, as a session starts them,
    without engines."""
    host, estimator, checkpoints = start_with_critic(tmp_path)
    yield host, estimator, checkpoints
    host.kill()


def start_with_critic(folder, *flags, dtype="bf16"):
    words = [
        "--recipe",
        str(SUMS),
        "--mapping",
        "shared",
        "--algo.advantage.estimator",
        "gae",
        "--algo.advantage.lambd",
        "0.9",
    ]
    words += [
        "--critic.num_gpus_per_node",
        "2",
        "--critic.adam.lr",
        "1e-3",
        "--critic.save_value_network",
    ]
    words += [
        "--train.micro_batch_size",
        "2",
        "--rollout.micro_batch_size",
        "4",
        "--actor.lr_warmup_ratio",
        "0",
    ]
    plan = build_plan(
        [
            *words,
            "--ckpt.path",
            str(folder / "checkpoints"),
            "--ckpt.output_dir",
            str(folder / "out"),
            *flags,
        ]
    )
    checkpoints = Checkpoints(folder / "checkpoints", 3, fingerprint(plan), critics=True)
    session, (policy,) = Session(plan), plan.run.policies
    args = session.args["shared"]
    args.vllm.num_engines, args.ds.param_dtype = 0, dtype
    host = UpstreamPolicy(
        policy, args, "cpu", session.chats["shared"].tokenizer, 100, RestartBudget(0), 600.0
    )
    host.launch()
    if dtype == "fp32":
        in_float32(host.training.handles())
    host.load()
    wait(host)
    return host, session.estimator, checkpoints


async def gae_step(host, estimator, number, rows):
    return await host.update(await prepare(host, rows, estimator), 2, number)


def critic_weights(host):
    """Of its first rank."""

    def work(actor):
        return [p.detach().clone() for p in actor.engine.module.parameters()]

    return ray.get(host.critic._actor_handlers[0].__ray_call__.remote(work))


def test_policy_and_critic_train_save_and_resume_as_one(with_critic, tmp_path):
    """Three steps with a save after the second; processes that resume from it repeat the third,
    metrics and weights."""
    host, estimator, checkpoints = with_critic
    rows, found, untrained = recorded_rows(11, seed=1), [], critic_weights(host)
    for number in (1, 2, 3):
        found.append(asyncio.run(gae_step(host, estimator, number, rows)))
        if number == 2:
            asyncio.run(host.save(tag(2), {"step": 2}))
            checkpoints.commit(2, {"shared": 2}, {})
    for metrics in found:
        for name, ranks in (("", 1), ("critic_", 2)):
            layout = layout_of(rows, ranks, 2, 2)
            assert metrics[f"{name}optimiser_steps"] == 2
            assert metrics[f"{name}micro_batches"] == layout.steps * layout.accumulation
            assert metrics[f"{name}fill_rows"] == layout.fill
        assert metrics["critic_grad_norm"] > 0
    assert found[2]["critic_loss"] < found[0]["critic_loss"]
    assert not all(torch.equal(a, b) for a, b in zip(untrained, critic_weights(host), strict=True))
    asyncio.run(host.save_model())
    saved = safetensors.torch.load_file(tmp_path / "out" / "shared_critic" / "model.safetensors")
    torch.testing.assert_close(saved["score.weight"], critic_weights(host)[-1])

    one, critic = weights(host), critic_weights(host)
    processes = [handle._actor_id for handle in host.training.handles()]
    host.kill()  # and the same object starts them again, from what was saved
    assert not list(host.training.handles())
    assert checkpoints.open(resume=True)["step"] == 2
    host.args.ckpt.load_enable = True
    start([host], 600.0)
    assert not {handle._actor_id for handle in host.training.handles()} & set(processes)
    assert asyncio.run(gae_step(host, estimator, 3, rows)) == found[2]
    assert all(torch.equal(a, b) for a, b in zip(critic_weights(host), critic, strict=True))
    two = weights(host)
    assert all(torch.equal(one[name], two[name]) for name in one)

    host.args.critic.freezing_steps = 4
    metrics = asyncio.run(gae_step(host, estimator, 4, rows))
    assert (metrics["optimiser_steps"], metrics["critic_optimiser_steps"]) == (0, 2)
    assert all(torch.equal(one[name], value) for name, value in weights(host).items())
    metrics = asyncio.run(gae_step(host, estimator, 5, rows))  # and then on this step's rows alone
    assert metrics["micro_batches"] == 6

    prepared = asyncio.run(prepare(host, rows, estimator))
    prepared.items[4].returns[:] = float("nan")
    with pytest.raises(
        RunEnded,
        match=r"policy 'shared', step 5: critic_loss is not finite \(11 rows, the first t0/0/a\)",
    ):
        asyncio.run(host.update(prepared, 2, 5))


def test_a_stopped_rank_is_ended_and_ends_the_run(with_critic):
    """The critic's second rank is stopped; its first waits for it in a collective operation."""
    host, estimator, _ = with_critic
    host.processes.silence = 5.0
    pid = host.processes.where[-1].pid
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(RunEnded) as ended:
        asyncio.run(gae_step(host, estimator, 1, recorded_rows(6, seed=1)))
    assert (
        "of policy 'shared' answered nothing for 5 s (limits.silence_seconds) while the policy"
        in str(ended.value)
    )
    assert f"process {pid} on {socket.gethostname()} (stopped)" in str(ended.value)
    host.kill()
    assert wait_until(lambda: not psutil.pid_exists(pid))


@pytest.mark.usefixtures("cluster")
def test_a_process_that_dies_between_two_pieces_of_its_weights_ends_the_run(relay):
    def die_between():
        import os
        import signal

        from marl_plugins.engine.processes.policy_actor import PolicyActor

        whole = PolicyActor._pieces

        def some(self, limit):
            for number, piece in enumerate(whole(self, 100_000)):
                if number == 2:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield piece

        PolicyActor._pieces = some

    host = launch(copy.deepcopy(arguments(relay)), before=die_between)
    wait(host)
    with pytest.raises(RunEnded, match=r"of policy 'p' .* died while the policy gave its weights"):
        asyncio.run(host.processes.weights())
    host.kill()


def test_forward_passes_pad_their_dispatch_to_the_ranks(hosts):
    """One batch for two ranks would leave the second without work, and a collective waiting for
    it."""
    host = hosts["two_ranks"]
    maker = host.trainer.experience_maker
    assert isinstance(maker, ExperienceMaker)
    for count in (1, 3):
        rows = recorded_rows(count, seed=count)
        samples = [row_experience(row) for row in rows]
        made = maker.make_experience(samples)
        assert len(made) == count
        assert all(torch.isfinite(e.action_log_probs).all() for e in made)


@pytest.mark.parametrize("name", ["ours", "two_ranks"])
def test_rows_that_are_forwarded_as_they_arrive_are_as_at_once_bit_for_bit(hosts, name):
    """Conversations in parts of any size, without rewards; afterwards some of their turns are left
    out."""
    host, draw = hosts[name], random.Random(7)
    host.load()  # again: a test before this one has made weights that are not finite
    wait(host)
    trajectories = [conversations(seed, 4) for seed in range(9)]
    for number, action in enumerate(a for t in trajectories for a in t.actions):
        shown = [3 + i % 256 for i in action.shown_ids]  # 16 tokens or more, see docs/decisions.md
        action.shown_ids = (
            *shown,
            *([5] * 16 if action.before is None or not action.extends else []),
        )
        ids = tuple(3 + i % 256 for i in action.generation.ids)
        action.generation = dataclasses.replace(action.generation, ids=ids)
        action.returns = number / 10
    parts = [trajectories[:1], trajectories[1:5], trajectories[5:]]
    known = [
        asyncio.run(host.forward(rows_to_be(part, "p"))) for part in draw.sample(parts, len(parts))
    ]
    everything = rows_of(trajectories, {"p"})
    for rows in (everything, [row for row in everything if draw.random() < 0.8]):
        one, other = asyncio.run(host.forward(rows, known)), asyncio.run(host.forward(rows))
        for field, tensor in vars(other.tokens).items():
            assert (tensor is None) is (getattr(one.tokens, field) is None)
            assert tensor is None or torch.equal(getattr(one.tokens, field), tensor), field
        assert one.diffs == other.diffs and [s.ids for s in one.sequences] == [
            s.ids for s in other.sequences
        ]
        (early,), (late,) = (
            estimate([one], ReinforcePlusPlus()),
            estimate([other], ReinforcePlusPlus()),
        )
        assert all(
            torch.equal(a.advantages, b.advantages)
            for a, b in zip(early.items, late.items, strict=True)
        )


def test_rows_sampled_by_other_weights_abort(hosts):
    host = hosts["ours"]
    row = recorded_rows(1, seed=6)[0]
    host.version = 1
    with pytest.raises(
        RunEnded,
        match=r"sampled from policy 'p' version 0, but would train policy 'p' at version 1",
    ):
        check_versions([row], {host.name: host})
    host.version = 0
    check_versions([row], {host.name: host})


def test_adam_takes_the_same_step_whether_or_not_a_process_was_restarted_before_it():
    """DeepSpeed's operator multiplies its bias correction up within a process; six steps, the last
    after a gap."""
    import torch
    from deepspeed.ops.adam import FusedAdam

    def weights(restarted, mended):
        torch.manual_seed(0)
        parameter, other = (
            torch.nn.Parameter(torch.randn(10_000)),
            torch.nn.Parameter(torch.zeros(1)),
        )
        optimiser, elsewhere = FusedAdam([parameter], lr=1e-3), FusedAdam([other], lr=1e-3)
        if mended:
            cpu.make_adam_resumable(optimiser)
        for step in range(6):
            if (
                restarted and step == 5
            ):  # the operator's state is the process's: another optimiser's step leaves a gap too
                other.grad = torch.ones(1)
                elsewhere.state[other] = {
                    "step": 50,
                    "exp_avg": torch.zeros(1),
                    "exp_avg_sq": torch.zeros(1),
                }
                elsewhere.step()
            parameter.grad = torch.randn(10_000)
            optimiser.step()
        return parameter.detach()

    assert not torch.equal(
        weights(False, mended=False), weights(True, mended=False)
    )  # else the mending can go
    assert torch.equal(weights(False, mended=True), weights(True, mended=True))
