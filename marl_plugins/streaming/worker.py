"""Gradients of a policy's rows during the rollout, in a training process: accumulated outside
DeepSpeed, carried by upstream's own training step.

    add             one forward pass of a micro-batch, and a backward pass for each accumulator
                    (accumulators.py)
    training_step   of the first late micro-batch: its loss has the linear term  sum over parameters
                    p of <p, g>, less its value, whose gradient is g, the accumulated one; all
                    micro-batches are divided by the counts of the whole step

So reduction over ranks, clipping, norm, optimiser and scheduler are upstream's and DeepSpeed's, and
see one gradient. The model is called past DeepSpeed's engine, which hooks what its own forward
returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

# Installs the host support, before upstream is imported below.
# inside: works in the training processes
from marl_plugins.engine.hosts import cpu

cpu.install()  # before anything of upstream

with cpu.flash_attn_stand_in():
    from openrlhf.models import Actor
    from openrlhf.models.loss import aggregate_loss
    from openrlhf.models.utils import compute_approx_kl

from marl_plugins import Extension  # noqa: E402
from marl_plugins.engine.processes.extension import TrainingStep  # noqa: E402
from marl_plugins.streaming.accumulators import Accumulators, linear  # noqa: E402


@dataclass(frozen=True)
class GradientBatch:
    """Sequences whose gradients are taken together.

    Args:
        experience: Upstream's, of advantages before the estimator's last stage.
        groups: (sequences, tokens), the number of the normalisation group at each sampled token; -1
            elsewhere.
    """

    experience: Any
    groups: Tensor


class AccumulatedGradients(Extension):
    """The gradients that one training process has added up since the last update."""

    sums: Accumulators | None = None
    carried: CarriedGradients | None = None
    model: Any = None
    """The model under upstream's actor, past DeepSpeed's engine."""

    def begin(self, means: Mapping[str, float], affine: bool) -> None:
        """Forgets what is there and begins anew.

        Args:
            means: By normalisation group, what advantages are near.
            affine: Whether advantages are to be changed by mean and deviation.
        """
        actor = self.trainer.actor
        self.model = Actor(actor.model.module, temperature=actor.temperature)
        self.model.packing_samples, self.model.is_vlm = actor.packing_samples, False
        parameters = [p for p in actor.model.module.parameters() if p.requires_grad]
        self.sums = Accumulators(parameters, means, affine)

    def add(
        self, batches: Sequence[GradientBatch], names: Sequence[str], kl_coef: float
    ) -> list[bool]:
        """Adds micro-batches, and returns which of their sequences were added. The others' ratios
        leave the clip interval.

        Args:
            names: The normalisation groups, by their numbers.
        """
        return [added for batch in batches for added in self._add(batch, names, kl_coef)]

    def _add(self, batch: GradientBatch, names: Sequence[str], kl_coef: float) -> list[bool]:
        assert self.sums is not None, "begin comes first"
        args, e = self.trainer.args, batch.experience
        e.to_device(torch.cuda.current_device())
        self.trainer.actor.train()
        log_probs, output = self.model(
            e.sequences,
            e.action_mask,
            attention_mask=e.attention_mask,
            return_output=True,
            return_entropy=args.actor.entropy_coef is not None,
        )
        low, high = args.actor.eps_clip_low_high
        chosen = linear(
            log_probs.detach(), e.action_log_probs, e.action_mask, low, high, args.actor.dual_clip
        )
        if chosen.any():
            terms = LossTerms(self.trainer, e, chosen, log_probs, output)
            groups = batch.groups.to(chosen.device)[chosen]
            masks = {name: groups == n for n, name in enumerate(names) if (groups == n).any()}
            self.sums.add(
                terms.policy, e.advantages[chosen], masks, terms.without_advantages(kl_coef)
            )
        accumulated: list[bool] = chosen.tolist()
        return accumulated

    def carry(
        self, statistics: Mapping[str, tuple[float, float]], tokens: float, sequences: int
    ) -> None:
        """Lets the next fit take along what was added; called after `prepare_fit`.

        Args: as of `CarriedGradients`.
        """
        assert self.sums is not None, "begin comes first"
        accumulation = self.trainer.strategy.accumulated_gradient
        self.carried = CarriedGradients(self.sums, statistics, tokens, sequences, accumulation)

    def training_step(
        self,
        following: TrainingStep,
        experience: Any,
        kl_coef: float,
        number: int,
        counts: dict[str, Any],
    ) -> dict[str, Any]:
        if self.carried is None:
            return following(experience, kl_coef, number, counts)
        loss = self.carried.in_loss(self.trainer.actor_loss_fn)
        with patch.object(self.trainer, "actor_loss_fn", loss):
            return following(experience, kl_coef, number, self.carried.counted(counts))

    def fitted(self, status: dict[str, Any]) -> None:
        self.sums = self.carried = self.model = None


class LossTerms:
    """The loss of some sequences of a micro-batch, undivided, as upstream's `training_step` makes
    it (ppo_actor.py:290-345)."""

    undivided = {"dp_size": 1, "batch_num_tokens": 1.0, "global_batch_size": 1.0}  # noqa: RUF012

    def __init__(
        self, trainer: Any, experience: Any, chosen: Tensor, log_probs: Tensor, output: Any
    ):
        self.trainer, self.experience, self.chosen, self.output = (
            trainer,
            experience,
            chosen,
            output,
        )
        self.log_probs, self.old = log_probs[chosen], experience.action_log_probs[chosen]
        self.mask, self.rollout = (
            experience.action_mask[chosen],
            experience.rollout_log_probs[chosen],
        )

    def policy(self, advantages: Tensor) -> Tensor:
        """Returns the policy loss with these advantages (sequences, tokens)."""
        loss: Tensor = self.trainer.actor_loss_fn(
            self.log_probs,
            self.old,
            advantages,
            action_mask=self.mask,
            rollout_log_probs=self.rollout,
            **self.undivided,
        )[0]
        return loss

    def without_advantages(self, kl_coef: float) -> Tensor | None:
        """Returns the KL loss and the entropy; None without either."""
        args, parts = self.trainer.args, []
        if args.algo.kl.use_loss and args.algo.kl.init_coef > 0:
            since_0_11_1 = {}
            if hasattr(args.algo.kl, "unbiased_gradient"):
                since_0_11_1 = {
                    "log_probs_old": self.old,
                    "unbiased_gradient": args.algo.kl.unbiased_gradient,
                }
            base = self.experience.base_action_log_probs[self.chosen]
            kl = compute_approx_kl(
                self.log_probs, base, kl_estimator=args.algo.kl.estimator, **since_0_11_1
            )
            parts.append(kl_coef * aggregate_loss(kl, self.mask, **self.undivided))
        if args.actor.entropy_coef:
            entropy = self.output.entropy[:, -self.experience.action_mask.shape[1] :][self.chosen]
            parts.append(
                -args.actor.entropy_coef * aggregate_loss(entropy, self.mask, **self.undivided)
            )
        return sum(parts) if parts else None


@dataclass
class CarriedGradients:
    """Accumulated gradients that the next fit adds to its first micro-batch.

    Args:
        statistics: By normalisation group, mean and deviation of the step.
        tokens, sequences: Of what was accumulated, on all ranks.
        accumulation: Micro-batches of the optimiser step.
    """

    sums: Accumulators
    statistics: Mapping[str, tuple[float, float]]
    tokens: float
    sequences: int
    accumulation: int
    done: bool = False
    """Whether a micro-batch has taken it."""

    def counted(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Returns upstream's `loss_batch_info` with the counts of the whole step; like its own they
        are divided by the accumulation."""
        return {
            **info,
            "batch_num_tokens": info["batch_num_tokens"] + self.tokens / self.accumulation,
            "global_batch_size": info["global_batch_size"] + self.sequences / self.accumulation,
        }

    def in_loss(self, loss: Any) -> Callable[..., Any]:
        """Returns upstream's loss of the first micro-batch, with the linear term; its value is the
        same."""
        if self.done:
            return loss  # type: ignore[no-any-return]
        self.done = True

        def with_term(*args: Any, **info: Any) -> Any:
            value, *others = loss(*args, **info)
            return (value + self._term(info, loss.token_level_loss), *others)

        return with_term

    def _term(self, info: Mapping[str, Any], token_level: bool) -> Tensor:
        """DeepSpeed divides by the accumulation, and takes the mean over the ranks."""
        tokens = float(info["batch_num_tokens"]) * self.accumulation
        count = tokens if token_level else float(info["global_batch_size"]) * self.accumulation
        gradient = self.sums.gradient(self.statistics, count, tokens)
        scale, parts = info["dp_size"], zip(self.sums.parameters, gradient, strict=True)
        term = torch.stack([(p * (scale * g).to(p.dtype)).sum() for p, g in parts]).sum()
        return self.accumulation * (term - term.detach())
