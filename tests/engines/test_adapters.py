"""Real adapters: training processes and engines that several policies share, and nobody notices."""

import asyncio
import copy
from types import SimpleNamespace

import pytest
import safetensors.torch
import torch
from engines.test_policies import arguments, recorded_rows
from transformers import AutoTokenizer

from marl_plugins.adapters.backend import SharedBases
from marl_plugins.core.policy import Policy
from marl_plugins.processes.engines import RestartBudget
from marl_plugins.reinforce_pp import ReinforcePlusPlus
from marl_plugins.runtime.experience import estimate
from marl_plugins.runtime.policy import UpstreamPolicy, start, wait_until_loaded

FLAGS = ["--algo.kl.init_coef", "0.05", "--train.micro_batch_size", "3"]
RANKS = {"p": 8, "q": 3}


def run_of(args, frozen=(), following=()):
    """A run of adapters of one model, as far as the back-end reads it; `following` follow p."""
    by_policy = {}
    for name in (*RANKS, *following, *frozen):
        by_policy[name] = copy.deepcopy(args)
        by_policy[name].ds.lora = SimpleNamespace(
            rank=RANKS.get(name, 0), alpha=16, target_modules="all-linear", dropout=0.0
        )
    follows = dict.fromkeys(following, "p")
    policies = [Policy(name, "m", trainable=name in RANKS, follows=follows.get(name, "")) for name in by_policy]
    recipe = SimpleNamespace(roles_of=lambda policy: [policy])
    return SimpleNamespace(policies=policies, policy_args=by_policy, device="cpu", recipe=recipe)


def policies_of(run, backend, only=None):
    """The policies of a run, not started."""
    tokenizer = AutoTokenizer.from_pretrained(run.policy_args["p"].actor.model_name_or_path)
    made, budget = {}, RestartBudget(2)
    for policy in (p for p in run.policies if only in (None, p.name)):
        owner = backend.engines_of(run, policy.name) if backend else policy.name
        belongings = (policy, run.policy_args[policy.name], "cpu", tokenizer, 100, budget, 600.0)
        shared = made[owner].engines if owner != policy.name else None
        kind = backend.engine_kind(run, policy.name) if backend and shared is None else None
        made[policy.name] = UpstreamPolicy(*belongings, backend=backend, shared=shared, kind=kind)
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


async def two_steps(made, order="pq"):
    """Metrics, log-probs and weights of two steps of some adapters that are asked at once, in an order."""
    found = {}
    for n in (1, 2):
        names = [name for name in order if name in made]
        rows = {name: recorded_rows(7 + 3 * n, seed=10 * n + ord(name)) for name in names}
        forwarded = await asyncio.gather(*(made[name].forward(rows[name]) for name in names))
        prepared = [one for value in forwarded for one in estimate([value], ReinforcePlusPlus())]
        metrics = await asyncio.gather(*(made[name].update(p, 2, n) for name, p in zip(names, prepared, strict=True)))
        blobs = await asyncio.gather(*(made[name].processes.weights_to_sync() for name in names))
        for name, value, numbers, blob in zip(names, forwarded, metrics, await asyncio.gather(*blobs), strict=True):
            found[name, n] = value.tokens.log_probs, value.tokens.kl, numbers, adapter_of(blob)
    return found


def adapter_of(blob):
    """The tensors of an adapter, by the names of both PEFT's files and upstream's modules."""
    tensors = safetensors.torch.load(bytes(blob))
    return {name.replace(".default", ""): value for name, value in tensors.items() if "lora_" in name}


def same(one, other):
    assert one.keys() == other.keys()
    for key, (log_probs, kl, numbers, adapter) in one.items():
        assert torch.equal(log_probs, other[key][0]) and torch.equal(kl, other[key][1]), key
        assert numbers == other[key][2], key
        assert adapter.keys() == other[key][3].keys()
        assert all(torch.equal(value, other[key][3][name]) for name, value in adapter.items()), key


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("zero", "dtype", "ranks"), [(0, "bf16", 1), (2, "bf16", 2)])
def test_adapters_that_share_a_model_are_upstreams_own_on_models_of_their_own(relay, tmp_path, zero, dtype, ranks):
    """Bit for bit, in either order on every rank, and again from a checkpoint, which holds adapters alone."""
    flags = ["--ds.zero_stage", str(zero), "--actor.num_gpus_per_node", str(ranks)]
    args = copy.deepcopy(arguments(relay, *FLAGS, "--actor.adam.lr", "1e-3", *flags))
    args.ds.param_dtype, args.vllm.num_engines, args.ckpt.path = dtype, 0, str(tmp_path)
    run, expected = run_of(args), {}
    for name in RANKS:  # upstream's Actor(lora_rank=...), one after the other
        alone = policies_of(run, None, only=name)
        start(list(alone.values()), 600.0)
        expected |= asyncio.run(two_steps(alone))
        alone[name].stop()

    backend = SharedBases()
    backend.open(run)
    made = policies_of(run, backend)
    start(list(made.values()), 600.0)
    assert len({id(handle) for policy in made.values() for handle in policy.training.handles()}) == ranks
    found = run_alone(made, two_steps(made))
    same(found, expected)
    assert any(value.abs().max() > 0 for name, value in found["p", 2][3].items() if "lora_B" in name)
    assert not all(
        torch.equal(one, two) for one, two in zip(found["p", 2][3].values(), found["q", 2][3].values(), strict=True)
    )

    for policy in made.values():
        policy.args.ckpt.path = policy.processes.args.ckpt.path = str(tmp_path / policy.name)
    load(made)  # again, in the same processes
    same(run_alone(made, two_steps(made, order="qp")), expected)

    async def saved():
        await asyncio.gather(*(policy.save("global_step2", {"step": 2}) for policy in made.values()))
        return await two_steps(made)

    after = run_alone(made, saved())
    size = sum(file.stat().st_size for file in (tmp_path / "p").rglob("*.pt"))
    trained = sum(value.numel() for value in found["p", 2][3].values())
    assert size < 20 * trained * ranks
    for policy in made.values():
        policy.processes.args.ckpt.load_enable = True
    load(made)
    same(run_alone(made, two_steps(made)), after)
    made["p"].stop()
