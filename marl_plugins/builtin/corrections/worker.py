"""The supervised term in a training process."""

from __future__ import annotations

from typing import Any

from marl_plugins.engine.processes.extension import Extension, TrainingStep
from marl_plugins.engine.processes.weighing_trainer import ZERO_WEIGHT

CORRECTION_LABEL = "marl_plugins: correction"
"""The label of corrected actions among the rows, which have none."""


class CorrectionsLoss(Extension):
    """Trains micro-batches of corrected actions by cross-entropy.

    Their metrics have the names of those of the micro-batches of rows before them, because all
    ranks reduce theirs together, and weigh nothing.
    """

    loss = 0.0
    """Sum over the fit's micro-batches on this rank, times the number of ranks."""
    weight: float | None = None
    """Sum of the weights of all tokens of the next fit on all ranks; None: it has no corrected
    actions."""

    def expect(self, weight: float) -> None:
        """Announces a fit with corrected actions on some rank."""
        self.weight, self.loss = weight, 0.0

    def fitted(self, status: dict[str, Any]) -> None:
        if self.weight and status:
            status["corrections_loss"] = (
                self.trainer.strategy.all_reduce(self.loss, op="mean") / self.weight
            )
        self.weight = None

    def training_step(
        self,
        following: TrainingStep,
        experience: Any,
        kl_coef: float,
        number: int,
        counts: dict[str, Any],
    ) -> dict[str, Any]:
        """Returns the cross-entropy on corrected actions, whose advantages are the weights of their
        tokens.

        The loss is scaled as upstream's (utils/loss_utils.py:57-77): DeepSpeed divides by the
        accumulation and the ranks.
        """
        if CORRECTION_LABEL not in experience.labels:
            return following(experience, kl_coef, number, counts)
        trainer, strategy, weights, ranks = (
            self.trainer,
            self.trainer.strategy,
            experience.advantages,
            counts["dp_size"],
        )
        trainer.actor.train()
        log_probs = trainer.actor(
            experience.sequences,
            weights != 0,
            attention_mask=experience.attention_mask,
            ring_attn_group=strategy.ring_attn_group,
        )
        loss = -(log_probs * weights).sum()
        self.loss += loss.item() * ranks
        strategy.backward(
            loss * (strategy.accumulated_gradient * ranks), trainer.actor, trainer.actor_optim
        )
        strategy.optimizer_step(
            trainer.actor_optim, trainer.actor, trainer.actor_scheduler, name="actor"
        )
        metrics = trainer.last["metrics"] | {
            "actor_lr": trainer.actor_scheduler.get_last_lr()[0],
            "actor_grad_norm": strategy.get_grad_norm(trainer.actor),
        }
        return {
            "metrics": metrics,
            "weights": trainer.last["weights"],
            "num_samples": ZERO_WEIGHT,
            "num_action_tokens": ZERO_WEIGHT,
        }
