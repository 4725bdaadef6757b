"""Returns and normalisation against independent float64 computations."""

import functools
import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from simulated import make_trajectory

from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.advantages import (
    BLOCK_TOKENS,
    Moments,
    discounted_sums,
    masked_gae,
    masked_returns,
)
from marl_plugins.core.rows import Row

numbers = st.floats(-50, 50, allow_nan=False, width=32)


def reference_returns(rewards, mask, gamma):
    """Sum over the later tokens of the mask, each discounted by the sampled tokens in between;
    plain float64."""
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
    """Three sampled, four shown, three sampled tokens: the reward at the end is discounted by the
    sampled ones only."""
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 1, 1, 1]])
    rewards = torch.zeros(1, 10)
    rewards[0, 9] = 1.0
    assert masked_returns(rewards, mask, 0.9)[0, 0].item() == pytest.approx(0.9**5)


def reference_gae(values, rewards, mask, gamma, lambd):
    """verl's rule (core_algos.py:250-256 of 0.9.1, before it whitens): outside the mask the next
    value and the sum so far are carried over; written as a float64 loop over one row at a time."""
    advantages = np.zeros(rewards.shape)
    for i in range(rewards.shape[0]):
        following = carried = 0.0
        for t in reversed(range(rewards.shape[1])):
            if mask[i, t]:
                carried = rewards[i, t] + gamma * following - values[i, t] + gamma * lambd * carried
                following = float(values[i, t])
                advantages[i, t] = carried
    return advantages, advantages + values


@st.composite
def valued_tokens(draw):
    """Values, rewards and a mask with holes, of rows that may be empty, short, or longer than a
    block or two."""
    rows = draw(st.integers(1, 4))
    tokens = draw(
        st.one_of(
            st.integers(1, 9),
            st.sampled_from(
                [BLOCK_TOKENS - 1, BLOCK_TOKENS, BLOCK_TOKENS + 1, 3 * BLOCK_TOKENS + 5]
            ),
        )
    )
    share = draw(st.sampled_from([0.0, 0.1, 0.6, 1.0]))
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    values, rewards = generator.normal(0, 3, (2, rows, tokens)).astype(np.float32)
    return values, rewards, generator.random((rows, tokens)) < share


DECAYS = st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0])


@given(valued_tokens(), DECAYS, DECAYS)
def test_gae_equals_an_independent_computation_at_every_sampled_token(given_tokens, gamma, lambd):
    values, rewards, mask = given_tokens
    got = masked_gae(torch.tensor(values), torch.tensor(rewards), torch.tensor(mask), gamma, lambd)
    want = reference_gae(values.astype(np.float64), rewards, mask, gamma, lambd)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.dtype == torch.float32
        np.testing.assert_allclose(mine.numpy()[mask], theirs[mask], rtol=1e-5, atol=1e-4)


@given(valued_tokens(), DECAYS, DECAYS)
def test_in_float64_gae_is_exact(given_tokens, gamma, lambd):
    values, rewards, mask = given_tokens
    values, rewards = values.astype(np.float64), rewards.astype(np.float64)
    got = masked_gae(torch.tensor(values), torch.tensor(rewards), torch.tensor(mask), gamma, lambd)
    want = reference_gae(values, rewards, mask, gamma, lambd)
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_allclose(mine.numpy()[mask], theirs[mask], rtol=1e-9, atol=1e-9)


@given(valued_tokens(), DECAYS)
def test_nothing_outside_the_mask_changes_an_advantage(given_tokens, lambd):
    values, rewards, mask = (torch.tensor(x) for x in given_tokens)
    first = masked_gae(values, rewards, mask, 0.99, lambd)
    for junk in (7.0, float("nan")):
        second = masked_gae(
            values.masked_fill(~mask, junk), rewards.masked_fill(~mask, junk), mask, 0.99, lambd
        )
        assert all(torch.equal(a[mask], b[mask]) for a, b in zip(first, second, strict=True))


def test_gae_at_lambda_1_is_the_return_minus_the_value():
    values, rewards = torch.randn(
        2, 3, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mask = torch.rand(3, 200, generator=torch.Generator().manual_seed(1)) < 0.6
    advantages, returns = masked_gae(values, rewards, mask, 0.9, 1.0)
    want = masked_returns(rewards, mask, 0.9)
    torch.testing.assert_close(returns[mask], want[mask])
    torch.testing.assert_close(advantages[mask], (want - values)[mask])


def test_observation_tokens_neither_decay_nor_have_a_value():
    """The row of upstream's defect: three sampled, four shown, three sampled tokens, V 0.5, reward
    1 at the end."""
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 1, 1, 1]])
    rewards = torch.zeros(1, 10)
    rewards[0, 9] = 1.0
    advantages, _ = masked_gae(torch.full((1, 10), 0.5), rewards, mask, 1.0, 0.95)
    assert advantages[0, :3].tolist() == pytest.approx([0.5 * 0.95**n for n in (5, 4, 3)])
    packed, _ = masked_gae(torch.full((1, 6), 0.5), rewards[:, 4:], torch.ones(1, 6), 1.0, 0.95)
    assert advantages[mask.bool()].tolist() == packed[0].tolist()


def test_sums_over_many_blocks_of_blocks():
    values = torch.randn(
        1,
        BLOCK_TOKENS * BLOCK_TOKENS + 3,
        dtype=torch.float64,
        generator=torch.Generator().manual_seed(0),
    )
    got, following = discounted_sums(values, 0.999), 0.0
    for t in reversed(range(values.size(1))):
        following = values[0, t].item() + 0.999 * following
        assert got[0, t].item() == pytest.approx(following, abs=1e-9)


@given(st.lists(st.lists(numbers, max_size=12), min_size=1, max_size=6))
def test_moments_merge_to_those_of_all_numbers_together(groups):
    parts = [(torch.tensor(g, dtype=torch.float32), torch.ones(len(g))) for g in groups]
    together = [x for g in groups for x in np.array(g, np.float32).astype(np.float64)]
    total = functools.reduce(
        operator.add, (Moments.of(values, mask) for values, mask in parts), Moments()
    )
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
    """Random rows of several policies with their padded returns, as the runtime hands them to an
    estimator."""
    batches, everything = [], []
    for policy, count in per_policy.items():
        rows, lengths = [], []
        for n in range(count):
            trajectory = make_trajectory(
                {policy: []}, policies={policy: policy}, task=f"{policy}{n}"
            )
            rows.append(Row(trajectory, trajectory.actions[0], 0.0))
            lengths.append(int(generator.integers(1, 7)))
        width = max(lengths)
        returns = torch.tensor(generator.normal(3.0, 2.0, (count, width)), dtype=torch.float32)
        mask = torch.tensor([[t < n for t in range(width)] for n in lengths])
        batches.append((rows, returns, mask))
        everything += [
            (policy, x) for r, m in zip(returns, mask, strict=True) for x in r[m].double().tolist()
        ]
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
    over = Moments.of(values, torch.ones(2, 3))
    assert torch.equal((values - over.mean) / over.divisor, torch.zeros(2, 3))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("noise", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_outside_the_mask_stays_there(gamma, noise):
    rewards, mask = torch.tensor([[1.0, noise, 2.0, noise]]), torch.tensor([[1, 0, 1, 0]])
    got = masked_returns(rewards, mask, gamma)[mask.bool()]
    torch.testing.assert_close(got, torch.tensor([1.0 + gamma * 2.0, 2.0]))


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_no_rows_have_no_returns(gamma):
    nothing = torch.zeros(0, 5)
    assert masked_returns(nothing, nothing, gamma).shape == (0, 5)
    assert [t.shape for t in masked_gae(nothing, nothing, nothing, gamma, 0.9)] == [(0, 5), (0, 5)]
