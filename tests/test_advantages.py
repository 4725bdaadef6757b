"""Returns and normalisation against independent float64 computations."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.core.advantages import Moments, masked_returns, moments, normalise
from marl_plugins.core.rows import Row
from marl_plugins.reinforce_pp import ReinforcePlusPlus

numbers = st.floats(-50, 50, allow_nan=False, width=32)


def reference_returns(rewards, mask, gamma):
    """Sum over the later tokens of the mask, each discounted by the sampled tokens in between; plain float64."""
    out = np.zeros_like(rewards, dtype=np.float64)
    for i in range(rewards.shape[0]):
        for t in range(rewards.shape[1]):
            seen = 0
            for s in range(t, rewards.shape[1]):
                if mask[i, s]:
                    out[i, t] += gamma**seen * float(rewards[i, s])
                    seen += 1
    return out


@st.composite
def token_rewards(draw):
    rows, tokens = draw(st.integers(1, 4)), draw(st.integers(1, 9))
    values = draw(st.lists(numbers, min_size=rows * tokens, max_size=rows * tokens))
    mask = draw(st.lists(st.booleans(), min_size=rows * tokens, max_size=rows * tokens))
    return np.array(values, np.float32).reshape(rows, tokens), np.array(mask).reshape(rows, tokens)


@given(token_rewards(), st.sampled_from([1.0, 0.99, 0.5, 0.0]))
def test_returns_equal_an_independent_computation_at_every_sampled_token(given_rewards, gamma):
    rewards, mask = given_rewards
    got = masked_returns(torch.tensor(rewards), torch.tensor(mask), gamma).double().numpy()
    want = reference_returns(rewards, mask, gamma)
    np.testing.assert_allclose(got[mask], want[mask], rtol=1e-5, atol=1e-3)


@given(token_rewards(), st.sampled_from([1.0, 0.9]))
def test_tokens_outside_the_mask_change_no_return(given_rewards, gamma):
    rewards, mask = given_rewards
    changed = np.where(mask, rewards, rewards + 7.0).astype(np.float32)
    first = masked_returns(torch.tensor(rewards), torch.tensor(mask), gamma)
    second = masked_returns(torch.tensor(changed), torch.tensor(mask), gamma)
    assert torch.equal(first[torch.tensor(mask)], second[torch.tensor(mask)])


def test_observation_tokens_do_not_decay_credit():
    """Three sampled, four shown, three sampled tokens: the reward at the end is discounted by the sampled ones only."""
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 1, 1, 1]])
    rewards = torch.zeros(1, 10)
    rewards[0, 9] = 1.0
    assert masked_returns(rewards, mask, 0.9)[0, 0].item() == pytest.approx(0.9**5)


@given(st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=6))
def test_moments_merge_to_those_of_all_numbers_together(groups):
    parts = [(torch.tensor(g, dtype=torch.float32), torch.ones(len(g))) for g in groups]
    together = [x for g in groups for x in np.array(g, np.float32).astype(np.float64)]
    total = moments(parts)
    assert total.count == len(together)
    if together:
        mean = math.fsum(together) / len(together)
        variance = math.fsum((x - mean) ** 2 for x in together) / len(together)
        assert total.mean == pytest.approx(mean, rel=1e-9, abs=1e-9)
        assert total.variance == pytest.approx(variance, rel=1e-9, abs=1e-9)


def test_float32_cancellation_does_not_reach_the_statistics():
    values = torch.tensor([1e6 + i for i in range(8)], dtype=torch.float32)
    got = Moments.of(values, torch.ones(8))
    assert got.variance == pytest.approx(np.var(values.double().numpy()), rel=1e-12)


def rows_with_returns(generator, per_policy):
    """Random rows of several policies with their padded returns, as the runtime hands them to an estimator."""
    batches, everything = [], []
    for policy, count in per_policy.items():
        rows, lengths = [], []
        for n in range(count):
            trajectory = make_trajectory({policy: []}, policies={policy: policy}, task=f"{policy}{n}")
            rows.append(Row(trajectory, trajectory.actions[0], 0.0))
            lengths.append(int(generator.integers(1, 7)))
        width = max(lengths)
        returns = torch.tensor(generator.normal(3.0, 2.0, (count, width)), dtype=torch.float32)
        mask = torch.tensor([[t < n for t in range(width)] for n in lengths])
        batches.append((rows, returns, mask))
        everything += [(policy, x) for r, m in zip(returns, mask, strict=True) for x in r[m].double().tolist()]
    return batches, everything


def test_global_normalisation_spans_all_policies():
    batches, everything = rows_with_returns(np.random.default_rng(0), {"a": 5, "b": 3, "c": 8})
    estimator = ReinforcePlusPlus()
    statistics = estimator.statistics(batches)
    values = np.array([x for _, x in everything])
    for rows, returns, mask in batches:
        got = estimator.apply(rows, returns, statistics)[mask].double().numpy()
        want = (returns[mask].double().numpy() - values.mean()) / values.std()
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    joined = torch.cat([estimator.apply(r, g, statistics)[m].double() for r, g, m in batches])
    assert abs(joined.mean()) < 1e-6
    assert joined.std(unbiased=False).item() == pytest.approx(1.0, abs=1e-5)


def test_per_policy_normalisation_centres_each_policy():
    batches, _ = rows_with_returns(np.random.default_rng(1), {"a": 5, "b": 3})
    estimator = ReinforcePlusPlus(normalise="policy")
    statistics = estimator.statistics(batches)
    for rows, returns, mask in batches:
        assert abs(estimator.apply(rows, returns, statistics)[mask].double().mean()) < 1e-6


def test_splitting_rows_over_batches_changes_nothing():
    (rows, returns, mask), *_ = rows_with_returns(np.random.default_rng(2), {"a": 9})[0]
    estimator = ReinforcePlusPlus()
    whole = estimator.apply(rows, returns, estimator.statistics([(rows, returns, mask)]))
    parts = [(rows[i : i + 2], returns[i : i + 2], mask[i : i + 2]) for i in range(0, 9, 2)]
    split = torch.cat([estimator.apply(r, g, estimator.statistics(parts)) for r, g, _ in parts])
    assert torch.allclose(whole, split, atol=1e-6)


def test_equal_returns_give_zero_advantages_and_no_nan():
    values = torch.full((2, 3), 0.7)
    assert torch.equal(normalise(values, Moments.of(values, torch.ones(2, 3))), torch.zeros(2, 3))
