"""Token rewards to returns to normalised advantages, for any number of policies together.

All tensors are (rows, tokens); masks are True (or 1) at the tokens a policy sampled. Statistics are
taken in float64 and merged exactly, so they do not depend on how rows were split over policies,
ranks and micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK_TOKENS = 64
"""Tokens that one matrix product sums; decides the speed and nothing else."""


def discounted_sums(values: Tensor, decay: float) -> Tensor:
    """Returns the sum of each value and all that follow it in its row, each discounted by its
    distance.

    sums_t = sum over s >= t of decay^(s-t) values_s. Within blocks of 64 this is a product with a
    triangular matrix of powers; what comes from later blocks is the same sum again, over the
    blocks' first entries at decay^64.

    Args:
        values: (rows, tokens), floating.

    Returns:
        (rows, tokens), the dtype of `values`.
    """
    rows, tokens = values.shape
    if not values.numel():
        return values
    place = torch.arange(BLOCK_TOKENS, device=values.device)
    lag = place[:, None] - place[None, :]
    powers = torch.where(lag >= 0, decay ** lag.clamp(min=0).double(), 0.0)
    blocks = pad(values, (0, -tokens % BLOCK_TOKENS)).view(rows, -1, BLOCK_TOKENS)
    sums = blocks @ powers.to(values.dtype)
    if blocks.size(1) > 1:
        later = pad(discounted_sums(sums[:, :, 0], decay**BLOCK_TOKENS)[:, 1:], (0, 1))
        sums = sums + later[:, :, None] * (decay ** (BLOCK_TOKENS - place).double()).to(
            values.dtype
        )
    return sums.reshape(rows, -1)[:, :tokens]


class _SampledTokens:
    """The tokens in the mask, moved to the left of their rows, and the way back.

    A token outside the mask has the place of the next one inside it, so that `spread` gives it what
    belongs to what follows.
    """

    def __init__(self, mask: Tensor):
        self.mask = mask.bool()
        self.place = self.mask.cumsum(1) - self.mask.long()

    def gather(self, values: Tensor) -> Tensor:
        """(rows, tokens) to (rows, tokens + 1), with zeros after each row's last sampled token."""
        room = values.new_zeros(values.size(0), values.size(1) + 1)
        return room.scatter_add_(1, self.place, torch.where(self.mask, values, 0.0))

    def spread(self, values: Tensor) -> Tensor:
        """The inverse of `gather`."""
        return values.gather(1, self.place)


def masked_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Returns the discounted sum of the rewards from each token on, over the tokens in the mask.

    Tokens outside the mask neither add a reward nor discount one: a tool's answer in the middle of
    a row costs no credit (upstream's loop, experience_maker.py:400-421, discounts once per
    position; equal where the mask has no holes).

    Args:
        rewards: (rows, tokens), floating.
        mask: (rows, tokens).
        gamma: Discount per sampled token.

    Returns:
        (rows, tokens), the dtype of `rewards`; values outside the mask are the return of what
        follows.
    """
    if gamma == 1.0:
        return torch.where(mask.bool(), rewards, 0.0).flip(1).cumsum(1).flip(1)
    sampled = _SampledTokens(mask)
    return sampled.spread(discounted_sums(sampled.gather(rewards), gamma))


def masked_gae(
    values: Tensor, rewards: Tensor, mask: Tensor, gamma: float, lambd: float
) -> tuple[Tensor, Tensor]:
    """Computes generalised advantages over the tokens in the mask (Schulman et al., arXiv
    1506.02438, eq. 16).

        delta_t = r_t + gamma V_t' - V_t          t' the next sampled token of the row, V after the
            last one 0
        A_t     = sum over the sampled s >= t of (gamma lambda)^(number of sampled tokens from t to
                s) delta_s

    Tokens outside the mask neither decay credit nor contribute a value, as in verl's
    `compute_gae_advantage_return` (without the whitening at its end); upstream's loop
    (experience_maker.py:370-385) takes them for steps of value 0.

    Args:
        values: (rows, tokens), the critic's V before each token was sampled; any floating dtype.
        rewards: (rows, tokens), floating.
        mask: (rows, tokens).
        gamma, lambd: Discount and trace decay per sampled token, in [0, 1].

    Returns:
        Advantages and returns (advantages + values), each (rows, tokens) of the dtype of `rewards`;
        outside the mask those of the next token inside it.
    """
    sampled = _SampledTokens(mask)
    value, reward = sampled.gather(values.to(rewards.dtype)), sampled.gather(rewards)
    delta = reward + gamma * pad(value[:, 1:], (0, 1)) - value
    advantages = discounted_sums(delta, gamma * lambd)
    return sampled.spread(advantages), sampled.spread(advantages + value)


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of numbers, in float64; `+` merges two
    sets exactly (Chan et al.)."""

    count: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, values: Tensor, mask: Tensor) -> Moments:
        """Returns the moments of the values where the mask is set."""
        chosen = values[mask.bool()].double()
        if not chosen.numel():
            return cls()
        mean = chosen.mean()
        return cls(float(chosen.numel()), mean.item(), (chosen - mean).square().sum().item())

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        if not count:
            return self
        gap = other.mean - self.mean
        return Moments(
            count,
            self.mean + gap * other.count / count,
            self.deviation + other.deviation + gap * gap * self.count * other.count / count,
        )

    @property
    def variance(self) -> float:
        """Population variance (divided by the count), as upstream's (experience_maker.py:332)."""
        return self.deviation / self.count if self.count else 0.0

    @property
    def divisor(self) -> float:
        """sqrt(max(variance, 1e-8)), by which upstream's `reinforce` divides
        (experience_maker.py:325-338)."""
        return float(max(self.variance, 1e-8) ** 0.5)
