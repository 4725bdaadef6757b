"""Token rewards to returns to normalised advantages, for any number of policies together.

All tensors are (rows, tokens); masks are True (or 1) at the tokens a policy sampled. Statistics are taken in float64 and
merged exactly, so they do not depend on how rows were split over policies, ranks and micro-batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


def masked_returns(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """Discounted sum of the rewards from each token on, over the tokens in the mask.

    Tokens outside the mask neither add a reward nor discount one: a tool's answer in the middle of a row costs no credit
    (upstream's loop, experience_maker.py:400-421, discounts once per position; equal where the mask has no holes).

    Args:
        rewards: (rows, tokens), floating.
        mask: (rows, tokens).
        gamma: Discount per sampled token.

    Returns:
        (rows, tokens), the dtype of `rewards`; values outside the mask are the return of what follows.
    """
    rewards = rewards * mask
    if gamma == 1.0:
        return rewards.flip(1).cumsum(1).flip(1)
    mask = mask.to(rewards.dtype)
    discount = gamma * mask + (1 - mask)
    returns = torch.empty_like(rewards)
    following = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.size(1))):
        following = rewards[:, t] + discount[:, t] * following
        returns[:, t] = following
    return returns


@dataclass(frozen=True)
class Moments:
    """Count, mean and sum of squared deviations of a set of numbers, in float64; `+` merges two sets exactly (Chan et al.)."""

    count: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, values: Tensor, mask: Tensor) -> Moments:
        """Moments of the values where the mask is set."""
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


def moments(parts: Iterable[tuple[Tensor, Tensor]]) -> Moments:
    """Moments of (values, mask) pairs taken together."""
    total = Moments()
    for values, mask in parts:
        total += Moments.of(values, mask)
    return total


def normalise(values: Tensor, over: Moments, divide: bool = True) -> Tensor:
    """(values - mean) / sqrt(max(variance, 1e-8)), upstream's `reinforce` (experience_maker.py:325-338); or minus the mean."""
    centred = values - over.mean
    return centred / max(over.variance, 1e-8) ** 0.5 if divide else centred
