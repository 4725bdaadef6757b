"""Gradients of a policy's rows beside the rollout, in a training process: accumulated outside DeepSpeed, carried by upstream's own
training step.

    accumulate    one forward pass of a micro-batch, and a backward pass for each accumulator (core/accumulators.py)
    training_step of the first late micro-batch: its loss has the linear term  sum over parameters p of <p, g>, less its value,
                  whose gradient is g, the accumulated one; all micro-batches are divided by the counts of the whole step

So reduction over ranks, clipping, norm, optimiser and scheduler are upstream's and DeepSpeed's, and see one gradient. The model is
called past DeepSpeed's engine, which hooks what its own forward returns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Installs the host support, before upstream is imported below.
from marl_plugins.hosts import cpu

cpu.install()  # before anything of upstream

with cpu.flash_attn_stand_in():
    from openrlhf.models import Actor
    from openrlhf.models.loss import aggregate_loss
    from openrlhf.models.utils import compute_approx_kl

from marl_plugins.core.accumulators import Accumulators, linear  # noqa: E402


@dataclass(frozen=True)
class MicroBatch:
    """Sequences whose gradients are taken together.

    Args:
        experience: Upstream's, of advantages before the estimator's last stage.
        keys: (sequences, tokens), the number of the estimator's key at each sampled token; -1 elsewhere.
    """

    experience: Any
    keys: Tensor


class Gradients:
    """The accumulators of one version in one training process.

    Args:
        trainer: Upstream's `ActorPPOTrainer`, whose model, loss and flags are taken.
        late: Whether advantages are to be changed by mean and deviation.
    """

    def __init__(self, trainer: Any, version: int, late: bool):
        actor = trainer.actor
        self.trainer = trainer
        self.view = Actor(actor.model.module, temperature=actor.temperature)
        self.view.packing_samples, self.view.is_vlm = actor.packing_samples, False
        self.sums = Accumulators([p for p in actor.model.module.parameters() if p.requires_grad], version, late)

    def add(self, batch: MicroBatch, names: Sequence[str], centres: Mapping[str, float], kl_coef: float) -> list[bool]:
        """Add a micro-batch; which of its sequences were added. The others' ratios leave the clip interval.

        Args:
            names: The keys, by their numbers.
            centres: By key, what advantages are near; the same at every call.
        """
        args, e = self.trainer.args, batch.experience
        e.to_device(torch.cuda.current_device())
        self.trainer.actor.train()
        log_probs, output = self.view(
            e.sequences,
            e.action_mask,
            attention_mask=e.attention_mask,
            return_output=True,
            return_entropy=args.actor.entropy_coef is not None,
        )
        low, high = args.actor.eps_clip_low_high
        good = linear(log_probs.detach(), e.action_log_probs, e.action_mask, low, high, args.actor.dual_clip)
        if good.any():
            taken = _Taken(self.trainer, e, good, log_probs, output)
            keys = batch.keys.to(good.device)[good]
            masks = {name: keys == n for n, name in enumerate(names) if (keys == n).any()}
            self.sums.add(taken.policy, e.advantages[good], masks, centres, taken.rest(kl_coef))
        found: list[bool] = good.tolist()
        return found


class _Taken:
    """The loss of some sequences of a micro-batch, undivided, as upstream's `training_step` makes it (ppo_actor.py:290-345)."""

    undivided = {"dp_size": 1, "batch_num_tokens": 1.0, "global_batch_size": 1.0}  # noqa: RUF012

    def __init__(self, trainer: Any, experience: Any, good: Tensor, log_probs: Tensor, output: Any):
        self.trainer, self.experience, self.good, self.output = trainer, experience, good, output
        self.log_probs, self.old = log_probs[good], experience.action_log_probs[good]
        self.mask, self.rollout = experience.action_mask[good], experience.rollout_log_probs[good]

    def policy(self, advantages: Tensor) -> Tensor:
        loss: Tensor = self.trainer.actor_loss_fn(
            self.log_probs, self.old, advantages, action_mask=self.mask, rollout_log_probs=self.rollout, **self.undivided
        )[0]
        return loss

    def rest(self, kl_coef: float) -> Tensor | None:
        """KL loss and entropy; None without either."""
        args, parts = self.trainer.args, []
        if args.algo.kl.use_loss and args.algo.kl.init_coef > 0:
            kl = compute_approx_kl(
                self.log_probs,
                self.experience.base_action_log_probs[self.good],
                log_probs_old=self.old,
                kl_estimator=args.algo.kl.estimator,
                unbiased_gradient=args.algo.kl.unbiased_gradient,
            )
            parts.append(kl_coef * aggregate_loss(kl, self.mask, **self.undivided))
        if args.actor.entropy_coef:
            entropy = self.output.entropy[:, -self.experience.action_mask.shape[1] :][self.good]
            parts.append(-args.actor.entropy_coef * aggregate_loss(entropy, self.mask, **self.undivided))
        return sum(parts) if parts else None


@dataclass
class Carried:
    """What one fit takes along.

    Args:
        statistics: By key, mean and deviation of the step.
        tokens, sequences: Of what was accumulated, on all ranks.
        version: Of the weights that are updated.
        accumulation: Micro-batches of the optimiser step.
    """

    sums: Accumulators
    statistics: Mapping[str, tuple[float, float]]
    tokens: float
    sequences: int
    version: int
    accumulation: int
    done: bool = False
    """Whether a micro-batch has taken it."""

    def counted(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """Upstream's `loss_batch_info` with the counts of the whole step; like its own they are divided by the accumulation."""
        return {
            **info,
            "batch_num_tokens": info["batch_num_tokens"] + self.tokens / self.accumulation,
            "global_batch_size": info["global_batch_size"] + self.sequences / self.accumulation,
        }

    def in_loss(self, loss: Any) -> Callable[..., Any]:
        """Upstream's loss of the first micro-batch, with the linear term; its value is the same."""
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
        gradient = self.sums.gradient(self.statistics, count, tokens, self.version)
        scale, parts = info["dp_size"], zip(self.sums.parameters, gradient, strict=True)
        term = torch.stack([(p * (scale * g).to(p.dtype)).sum() for p, g in parts]).sum()
        return self.accumulation * (term - term.detach())
