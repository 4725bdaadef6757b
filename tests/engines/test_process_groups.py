"""Real training processes that come and go: nobody else notices."""

import asyncio
import copy

import pytest
import ray
import torch
from engines.test_policies import arguments, launch, recorded_rows, step, weights

FLAGS = ["--actor.adam.lr", "1e-3", "--algo.kl.init_coef", "0.05", "--actor.lr_scheduler", "cosine"]


def states(policy):
    """Of all processes of a policy, as they are when Ray has them."""
    pairs = [handle.get_state.options(num_returns=2).remote() for handle in policy.training.handles()]
    sizes = ray.get([size for size, _ in pairs])
    return sizes, [state for _, state in pairs]


def three_steps(policy):
    """Metrics and weights of steps 3 to 5, and of a forward pass after them."""
    found = [(asyncio.run(step(policy, recorded_rows(13, seed=n), 2, n)), weights(policy)) for n in (3, 4, 5)]
    forwarded = asyncio.run(policy.forward(recorded_rows(5, seed=9)))
    return found, forwarded.tokens


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("zero", "dtype", "ranks"), [(0, "bf16", 1), (1, "fp32", 1), (2, "bf16", 2)])
def test_another_process_goes_on_with_the_state_bit_for_bit(relay, zero, dtype, ranks):
    """Steps 3 to 5 in the process that did the first two, and in another one that was given its state."""
    flags = ["--ds.zero_stage", str(zero), "--actor.num_gpus_per_node", str(ranks), "--train.micro_batch_size", "3"]
    args = copy.deepcopy(arguments(relay, *flags, *FLAGS))
    args.train.batch_size, args.ds.param_dtype = 3 * ranks, dtype
    one = launch(args)
    one.wait()
    for n in (1, 2):
        asyncio.run(step(one, recorded_rows(13, seed=n), 2, n))
    sizes, kept = states(one)
    parameters = sum(w.numel() for w in weights(one).values())
    assert all(size > 12 * parameters / ranks for size in sizes)  # Adam's moments and float32 weights
    undisturbed, tokens = three_steps(one)
    one.stop()

    two = launch(args)
    two.wait()
    ray.get([handle.set_state.remote(state) for handle, state in zip(two.training.handles(), kept, strict=True)])
    again, same_tokens = three_steps(two)
    two.stop()
    for (metrics, one_weights), (same, two_weights) in zip(undisturbed, again, strict=True):
        assert same == metrics
        assert all(torch.equal(value, two_weights[name]) for name, value in one_weights.items())
    assert torch.equal(tokens.log_probs, same_tokens.log_probs) and torch.equal(tokens.kl, same_tokens.kl)
    assert not torch.equal(*(w["model.norm.weight"] for _, w in (undisturbed[0], undisturbed[2])))
