"""The gradient of a step's rows, taken before the statistics of the step are known.

A policy's loss is linear in the advantages as long as no ratio leaves the clip interval. With
advantages (A - mean_k) / deviation_k for the rows of key k,

    gradient = 1/N sum over k of (G1_k - mean_k G0_k) / deviation_k  +  1/T GL

where G1_k is the gradient of the undivided loss with A in place of the advantages, G0_k that with
1, and GL that of what needs neither (KL loss, entropy); T counts the step's tokens, and N those too
or, where the loss is a mean over sequences, these.

Accumulated is A - centre_k, with a centre near the mean (the one of the version before): where
rewards differ by little of what they are, G1_k and mean_k G0_k are large and nearly equal. Without
a good centre the rounding of the two is much of what is left, in bfloat16 soon more than that;
`resolved` says so. So it is wherever all advantages of a key are equal: nothing is left then.

Exact for one optimiser step per version: a second one is taken at other weights.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

# inside: works in the training processes
from marl_plugins.core.advantages import Moments

Sums = list[Tensor]
"""One per parameter, float32 or better."""


@dataclass
class Accumulators:
    """Accumulators of the gradients of one policy's rows of one version, on one rank; eight bytes a
    parameter and key, four where
    `late` is off.

    Args:
        parameters: What is trained.
        centres: By key, what is taken off its advantages; 0 where it is missing.
        late: Whether advantages get a mean and deviation afterwards; else they are final, and every
            G0 and centre is left out.
    """

    parameters: Sequence[Tensor]
    centres: Mapping[Any, float]
    late: bool = True
    with_advantages: dict[Hashable, Sums] = field(default_factory=dict)
    with_ones: dict[Hashable, Sums] = field(default_factory=dict)
    rest: Sums | None = None

    def add(
        self,
        loss: Callable[[Tensor], Tensor],
        advantages: Tensor,
        masks: Mapping[Any, Tensor],
        rest: Tensor | None = None,
    ) -> None:
        """Adds a micro-batch, whose forward pass has been made.

        Args:
            loss: Advantages (sequences, tokens) to the policy's loss, a sum that nothing has
                divided yet, of that forward pass.
            advantages: (sequences, tokens), before normalisation.
            masks: By key, the tokens (sequences, tokens) of its rows; none is in two.
            rest: The part of the loss that needs no advantages, likewise undivided; taken last, and
                the graph is gone then.
        """
        for key, mask in masks.items():
            centre = self.centres.get(key, 0.0) if self.late else 0.0
            inside = mask.bool()
            with_advantages = loss(torch.where(inside, advantages - centre, 0.0))
            self.with_advantages[key] = self._sum(self.with_advantages.get(key), with_advantages)
            if self.late:
                with_ones = loss(inside.to(advantages.dtype))
                self.with_ones[key] = self._sum(self.with_ones.get(key), with_ones)
        if rest is not None:
            self.rest = self._sum(self.rest, rest, keep=False)

    def _sum(self, sums: Sums | None, loss: Tensor, keep: bool = True) -> Sums:
        """Adds the gradient of a loss to what is there already; upstream's entropy is compiled, and
        its graph cannot be kept."""
        gradients = torch.autograd.grad(
            loss, list(self.parameters), retain_graph=keep, allow_unused=True
        )
        if sums is None:
            sums = self._zeros()
        for total, gradient in zip(sums, gradients, strict=True):
            if gradient is not None:
                total += gradient
        return sums

    def _zeros(self) -> Sums:
        return [
            torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32))
            for p in self.parameters
        ]

    def gradient(
        self, statistics: Mapping[Any, tuple[float, float]], count: float, tokens: float
    ) -> list[Tensor]:
        """Returns the gradient of all that was added, one per parameter.

        Args:
            statistics: By key, mean and deviation of the step's advantages; not needed where they
                are final.
            count, tokens: N and T, of all rows of the step on all ranks.
        """
        total = self._zeros()
        for key, sums in self.with_advantages.items():
            mean, deviation = statistics[key] if self.late else (0.0, 1.0)
            for place, one in enumerate(sums):
                part = (
                    one - (mean - self.centres.get(key, 0.0)) * self.with_ones[key][place]
                    if self.late
                    else one
                )
                total[place] += part / (deviation * count)
        for place, one in enumerate(self.rest or ()):
            total[place] += one / tokens
        return total


def resolved(
    added: Mapping[Any, Moments],
    centres: Mapping[Any, float],
    means: Mapping[Any, float],
    dtype: torch.dtype,
) -> bool:
    """Returns whether `gradient` is rounded to 1e-6, or to what the parameters' own type resolves
    where that is less; else all rows are better trained the usual way.

    (mean - centre) G0 is taken from G1, and what is left is of the size of A - mean: as many times
    as the one is larger than the other, it is rounded by more than the usual gradient. In bfloat16
    that is once at most.

    Args:
        added: By key, the advantages that were accumulated.
        centres: What was taken off them; 0 where it is missing.
        means: Of the step's advantages.
        dtype: Of the parameters.
    """
    most = max(1.0, 1e-6 / torch.finfo(dtype).eps)
    left = {key: (a.variance + (a.mean - means[key]) ** 2) ** 0.5 for key, a in added.items()}
    return all(abs(means[key] - centres.get(key, 0.0)) <= most * size for key, size in left.items())


def linear(
    log_probs: Tensor, old: Tensor, mask: Tensor, low: float, high: float, dual: float | None = None
) -> Tensor:
    """Returns the sequences (sequences,) whose every ratio lies in [1 - low, min(1 + high, dual)],
    where upstream's loss is linear in the advantages, whatever their sign; the others have to wait
    for theirs. For GSPO that is enough: its ratio is a mean of these.

    Args:
        log_probs, old: (sequences, tokens), the trained policy's and those that the ratio is taken
            against.
        low, high: `--actor.eps_clip_low_high`.
        dual: `--actor.dual_clip`.
    """
    ratio = (log_probs - old).exp()
    top = 1 + high if dual is None else min(1 + high, dual)
    return ((ratio >= 1 - low) & (ratio <= top) | ~mask.bool()).all(-1)
