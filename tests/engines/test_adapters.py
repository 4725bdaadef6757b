"""Real adapters: training processes and engines that several policies share, and nobody notices."""

import asyncio
import copy
import itertools
import os
import signal
from types import SimpleNamespace

import pytest
import ray
import safetensors.torch
import torch
from engines.test_policies import arguments, in_float32, recorded_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from marl_plugins.adapters.backend import SharedBases
from marl_plugins.adapters.blob import packed, unpacked
from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.builtin.routing import least_loaded
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.policy import Policy
from marl_plugins.core.rows import Row
from marl_plugins.core.trajectory import Action, Task, Trajectory
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.processes.engines import RestartBudget
from marl_plugins.engine.runtime.experience import estimate
from marl_plugins.engine.runtime.policy import UpstreamPolicy, start, wait_until_loaded
from marl_plugins.streaming.gradients import GradientAccumulation

STREAMED = "marl_plugins.streaming.worker:AccumulatedGradients"
FLAGS = ["--algo.kl.init_coef", "0.05", "--train.micro_batch_size", "3"]
RANKS = {"p": 8, "q": 3, "r": 16}


def run_of(args, frozen=(), following=()):
    """A run of adapters of one model, as far as the back-end reads it; `following` follow p."""
    by_policy = {}
    for name in (*RANKS, *following, *frozen):
        by_policy[name] = copy.deepcopy(args)
        by_policy[name].ds.lora = SimpleNamespace(
            rank=RANKS.get(name, 0), alpha=16, target_modules="all-linear", dropout=0.0
        )
    follows = dict.fromkeys(following, "p")
    policies = [
        Policy(name, "m", trainable=name in RANKS, follows=follows.get(name, ""))
        for name in by_policy
    ]
    recipe = SimpleNamespace(roles_of=lambda policy: [policy])
    return SimpleNamespace(policies=policies, policy_args=by_policy, device="cpu", recipe=recipe)


def policies_of(run, backend, extensions=()):
    """The policies of a run, not started."""
    tokenizer = AutoTokenizer.from_pretrained(run.policy_args["p"].actor.model_name_or_path)
    made, budget = {}, RestartBudget(2)
    for policy in run.policies:
        owner = backend.engines_of(run, policy.name) if backend else policy.name
        belongings = (policy, run.policy_args[policy.name], "cpu", tokenizer, 100, budget, 600.0)
        shared = made[owner].engines if owner != policy.name else None
        kind = backend.engine_kind(run, policy.name) if backend and shared is None else None
        made[policy.name] = UpstreamPolicy(
            *belongings, backend=backend, extensions=extensions, shared=shared, kind=kind
        )
        made[policy.name].followed = made.get(policy.follows)
    return made


def run_alone(made, coroutine):
    """What a coroutine returns, in an event loop of its own; a run has one, and so has a lock."""
    for policy in made.values():
        policy.processes.shared.lock = asyncio.Lock()
    return asyncio.run(coroutine)


def load(made):
    for policy in made.values():
        policy.load()
    wait_until_loaded(list(made.values()), 600.0)


async def two_steps(made, order="pqr"):
    """Metrics, log-probs and weights of two steps of some adapters that are asked at once, in an
    order."""
    found = {}
    for n in (1, 2):
        names = [name for name in order if name in made]
        rows = {name: recorded_rows(7 + 3 * n, seed=10 * n + ord(name)) for name in names}
        forwarded = await asyncio.gather(*(made[name].forward(rows[name]) for name in names))
        prepared = [one for value in forwarded for one in estimate([value], ReinforcePlusPlus())]
        metrics = await asyncio.gather(
            *(made[name].update(p, 2, n) for name, p in zip(names, prepared, strict=True))
        )
        blobs = await asyncio.gather(*(made[name].weights() for name in names))
        for name, value, numbers, blob in zip(names, forwarded, metrics, blobs, strict=True):
            found[name, n] = value.tokens.log_probs, value.tokens.kl, numbers, adapter_of(blob)
    return found


def adapter_of(blob):
    """The tensors of an adapter, by the names of both PEFT's files and upstream's modules."""
    tensors = safetensors.torch.load(bytes(blob))
    return {
        name.replace(".default", ""): value for name, value in tensors.items() if "lora_" in name
    }


def same(one, other):
    assert one.keys() == other.keys()
    for key, (log_probs, kl, numbers, adapter) in one.items():
        assert torch.equal(log_probs, other[key][0]) and torch.equal(kl, other[key][1]), key
        assert numbers == other[key][2], key
        assert adapter.keys() == other[key][3].keys()
        assert all(torch.equal(value, other[key][3][name]) for name, value in adapter.items()), key


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("zero", "dtype", "ranks"), [(0, "bf16", 1), (2, "bf16", 2)])
def test_adapters_that_share_a_model_are_upstreams_own_on_models_of_their_own(
    relay, tmp_path, zero, dtype, ranks
):
    """Bit for bit, in either order on every rank, and again from a checkpoint, which holds adapters
    alone."""
    flags = ["--ds.zero_stage", str(zero), "--actor.num_gpus_per_node", str(ranks)]
    args = copy.deepcopy(arguments(relay, *FLAGS, "--actor.adam.lr", "1e-3", *flags))
    args.ds.param_dtype, args.vllm.num_engines, args.ckpt.path = dtype, 0, str(tmp_path)
    run = run_of(args)
    alone = policies_of(run, None)  # upstream's Actor(lora_rank=...), in processes of their own
    start(list(alone.values()), 600.0)
    expected = asyncio.run(two_steps(alone))
    for policy in alone.values():
        policy.kill()

    backend = SharedBases()
    backend.open(run)
    made = policies_of(run, backend)
    start(list(made.values()), 600.0)
    assert (
        len({id(handle) for policy in made.values() for handle in policy.training.handles()})
        == ranks
    )
    found = run_alone(made, two_steps(made))
    same(found, expected)
    assert any(
        value.abs().max() > 0 for name, value in found["p", 2][3].items() if "lora_B" in name
    )
    moved = [found[name, 2][3].values() for name in RANKS]
    assert not any(all(map(torch.equal, one, two)) for one, two in itertools.combinations(moved, 2))

    for policy in made.values():
        policy.args.ckpt.path = policy.processes.args.ckpt.path = str(tmp_path / policy.name)
    load(made)  # again, in the same processes
    same(run_alone(made, two_steps(made, order="rqp")), expected)

    async def saved():
        await asyncio.gather(
            *(policy.save("global_step2", {"step": 2}) for policy in made.values())
        )
        return await two_steps(made)

    after = run_alone(made, saved())
    size = sum(file.stat().st_size for file in (tmp_path / "p").rglob("*.pt"))
    trained = sum(value.numel() for value in found["p", 2][3].values())
    assert size < 20 * trained * ranks
    for policy in made.values():
        policy.processes.args.ckpt.load_enable = True
    load(made)
    same(run_alone(made, two_steps(made)), after)
    made["p"].kill()


@pytest.mark.usefixtures("cluster")
def test_gradients_of_adapters_during_the_rollout_are_each_its_own(relay):
    """Those of two adapters are accumulated in turns; the step of each is the one without, and no
    other adapter's."""
    flags = [
        "--actor.adam.lr",
        "10",
        "--actor.adam.eps",
        "1",
        "--actor.lr_warmup_ratio",
        "0",
    ]  # as in test_gradients
    args = copy.deepcopy(arguments(relay, *FLAGS, *flags))
    args.ds.param_dtype, args.vllm.num_engines, args.train.batch_size = "fp32", 0, 3
    run, backend, estimator = run_of(args), SharedBases(), ReinforcePlusPlus(gamma=0.9)
    backend.open(run)
    made = {
        name: made for name, made in policies_of(run, backend, [STREAMED]).items() if name in "pq"
    }
    for policy in made.values():
        policy.launch()
    in_float32(made["p"].training.handles())
    rows = {"p": recorded_rows(13, seed=2), "q": recorded_rows(13, seed=3)}

    async def moved(name, prepared):
        before = adapter_of(await made[name].weights())
        await made[name].update(prepared, 1, 1)
        after = adapter_of(await made[name].weights())
        return torch.cat([(after[key] - before[key]).double().flatten() for key in sorted(after)])

    async def whole():
        forwarded = [await made[name].forward(rows[name]) for name in made]
        return {
            name: await moved(name, p)
            for name, p in zip(made, estimate(forwarded, estimator), strict=True)
        }

    async def streamed():
        gradients, known = (
            GradientAccumulation(estimator, made, {"": 0.4}),
            {name: [] for name in made},
        )
        for part in (slice(0, 2), slice(2, 9)):
            for name in made:
                gradients.note_returns(rows[name][part])
                known[name].append(await made[name].forward(rows[name][part]))
                await gradients.add(known[name][-1])
        forwarded = [await made[name].forward(rows[name], known[name]) for name in made]
        prepared = gradients.prepared(estimate(forwarded, estimator))
        assert [len(p.excluded) for p in prepared] == [9, 9]
        return {name: await moved(name, p) for name, p in zip(made, prepared, strict=True)}

    load(made)
    without = run_alone(made, whole())
    load(made)
    found = run_alone(made, streamed())
    for name in made:
        assert without[name].norm() > 1e-3
        assert (found[name] - without[name]).norm() / without[name].norm() < 1e-5
    made["p"].kill()


# --- engines
# --------------------------------------------------------------------------------------------------

PROMPT = tuple(range(40, 60))


def request(policy, seed, tokens=24, prompt=PROMPT):
    return Call(
        policy,
        prompt,
        Sampling(1.0, 1.0, tokens, 512),
        tokens,
        seed,
        policy,
        "t",
        0,
        f"{policy}.{seed}",
        1,
        0,
    )


async def answers_of(made, seeds=(1, 2, 3), **more):
    """Each policy's answers, all asked at once."""
    calls = [request(name, seed, **more) for name in made for seed in seeds]
    return calls, await asyncio.gather(
        *(made[call.policy].engines.generate(call, least_loaded) for call in calls)
    )


def of_the_model(folder, call, answer):
    """The log-probs of an answer by the model itself, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([[*call.context_ids, *answer.ids]])).logits[
            0, len(call.context_ids) - 1 : -1
        ]
    return logits.log_softmax(-1)[range(len(answer.ids)), list(answer.ids)]


async def by_training(policy, calls, answers):
    """The log-probs of answers by a policy's training processes."""
    rows = []
    for call, answer in zip(calls, answers, strict=True):
        trajectory = Trajectory(Task(call.path, "p"), 0, step=1)
        action = Action("a", "first", policy.name, 0, call.context_ids, answer, "")
        trajectory.actions.append(action)
        rows.append(Row(trajectory, action, 0.0))
    return (await policy.forward(rows)).drift


@pytest.mark.usefixtures("cluster")
def test_one_engine_answers_for_adapters_and_for_the_model_beside_them(relay):
    args = copy.deepcopy(
        arguments(relay, *FLAGS, "--actor.adam.lr", "3e-2")
    )  # so that adapters are far from the model
    args.vllm.num_engines, args.data.max_len, args.ds.param_dtype = 1, 512, "bf16"
    run, backend = run_of(args, frozen=("still",), following=("old",)), SharedBases()
    backend.open(run)
    made = policies_of(run, backend)
    start(list(made.values()), 600.0)
    p, q = made["p"], made["q"]
    trained = {name: made[name] for name in RANKS}

    async def go():
        await asyncio.gather(*(policy.sync(0) for policy in trained.values()))
        await two_steps(trained)
        assert await made["old"].hold(await made["old"].weights(), 5)  # what p has now
        await asyncio.gather(*(policy.sync(1) for policy in trained.values()))
        calls, answers = await answers_of(made)
        seen = {
            name: [(c, a) for c, a in zip(calls, answers, strict=True) if c.policy == name]
            for name in made
        }
        versions = {(a.policy, a.version) for a in answers}
        assert versions == {("p", 1), ("q", 1), ("r", 1), ("old", 5), ("still", 0)}
        for name, policy in (*trained.items(), ("old", p)):
            assert await by_training(policy, *zip(*seen[name], strict=True)) < 0.02
        for call, answer in seen["still"]:
            off = torch.tensor(answer.logprobs) - of_the_model(
                args.actor.model_name_or_path, call, answer
            )
            assert off.abs().mean() < 0.02
        for call, answer in seen["p"]:  # and the adapters are not the model
            off = torch.tensor(answer.logprobs) - of_the_model(
                args.actor.model_name_or_path, call, answer
            )
            assert off.abs().mean() > 0.03

        # A push of one while all are sampled.
        long = asyncio.ensure_future(answers_of(made, seeds=(7, 8), tokens=300))
        await asyncio.sleep(0.3)
        assert await p.sync(2)
        _, over = await long
        assert {a.version for a in over if a.policy == "q"} == {1} and {
            a.version for a in over if a.policy == "p"
        } <= {
            1,
            2,
        }

        # The engine dies; the next one knows all.
        calls, before = await answers_of(made)
        pid = await p.engines.engines[0].handle.identify.remote("still", 0)
        os.kill(pid, signal.SIGKILL)
        _, after = await answers_of(made)
        assert [(a.ids, a.policy, a.version) for a in after] == [
            (a.ids, a.policy, a.version) for a in before
        ]
        assert (
            len({id(policy.engines) for policy in made.values()}) == 1 and p.engines.restarted == 1
        )

        # Another one dies while it is given an adapter.
        pid = await p.engines.engines[0].handle.identify.remote("still", 0)
        pushing = asyncio.ensure_future(q.sync(2))
        os.kill(pid, signal.SIGKILL)
        assert await pushing
        _, again = await answers_of(made)
        versions = {(a.policy, a.version) for a in again}
        assert versions == {("p", 2), ("q", 2), ("r", 1), ("old", 5), ("still", 0)}
        assert [a.ids for a in again if a.policy == "p"] == [
            a.ids for a in before if a.policy == "p"
        ]

        # What is no adapter of this model.
        handle = p.engines.engines[0].handle
        tensors, config = unpacked(blob := await q.weights())
        for wrong in (
            packed(
                {name.replace("q_proj", "x_proj"): value for name, value in tensors.items()}, config
            ),
            packed(tensors, config | {"r": 64}),
        ):
            with pytest.raises(RunEnded):
                await handle.load_state.remote([ray.put([wrong])], "q", 3)
        with pytest.raises(RunEnded):
            await handle.load_state.remote([ray.put([blob])], "still", 3)

    asyncio.run(go())
    p.kill()
