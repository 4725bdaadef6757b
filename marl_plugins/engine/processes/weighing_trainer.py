"""Upstream's trainer of one training process, with metrics that count rows, and with the extensions
of plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins.engine.hosts import cpu

cpu.install()  # before anything of upstream

with cpu.flash_attn_stand_in():
    import openrlhf.models  # noqa: F401

import openrlhf.trainer.ray.ppo_actor as upstream_actor  # noqa: E402
import torch  # noqa: E402

from marl_plugins.engine.processes.extension import Extension, chained_step  # noqa: E402

if TYPE_CHECKING:
    from openrlhf.trainer.ppo_utils.experience import Experience

ZERO_WEIGHT = 1e-30
"""Weight of a micro-batch without a single row in upstream's weighted means, whose denominators
must not be 0."""


class WeighingTrainer(upstream_actor.ActorPPOTrainer):  # type: ignore[misc]
    """Upstream's trainer, whose metrics count rows, of which a sequence has several, or none where
    it is weightless.

    Two of upstream's divisions meet an empty mask when a micro-batch holds nothing but a weightless
    sequence: `masked_mean` in the policy loss's metrics (models/utils.py:199-202, NaN) and the
        weighted means in `ppo_train` (ppo_actor.py:204-216, 0/0).
    The loss itself is fine there: a sum over no token, divided by the window's count. Where
    sequences are filtered (`--algo.advantage.is_correction_level seq`) one without tokens counts as
    filtered (models/loss.py:241-244).
    """

    extensions: Sequence[Extension] = ()
    actor_loss_fn: Any

    def training_step(
        self, experience: Experience, kl_ctl: float, step: int, loss_batch_info: Any = None
    ) -> dict[str, Any]:
        before = self._steps_taken()
        status = chained_step(self.extensions, self._weighed_step)(
            experience, kl_ctl, step, loss_batch_info
        )
        if self._steps_taken() > before:
            for extension in self.extensions:
                extension.stepped()
        return status

    def _steps_taken(self) -> int:
        """Returns the optimiser steps so far, but those that float16's loss scaling has skipped."""
        engine = self.actor.model
        return int(engine.global_steps - engine.skipped_steps)

    def _weighed_step(self, experience: Experience, *args: Any) -> dict[str, Any]:
        ones = [1.0] * len(experience.action_mask)  # in upstream's own loop
        rows = torch.tensor([float(count) for count in experience.info.pop("rows", ones)])
        status: dict[str, Any] = super().training_step(experience, *args)
        tokens, total = status["num_action_tokens"], float(rows.sum())
        for name, weight in status["weights"].items():
            value = status["metrics"][name]
            if weight == "token" and not tokens:
                status["metrics"][name] = 0.0
            elif (
                name == "is_filter_ratio" and self.args.algo.advantage.is_correction_level == "seq"
            ):
                status["metrics"][name] = (
                    without_fill(value, total, len(rows) - total) if total else 0.0
                )
            elif weight == "sample" and isinstance(value, torch.Tensor):
                status["metrics"][name] = (
                    (value.float().cpu() * rows).sum() / total if total else 0.0
                )
        status["num_action_tokens"], status["num_samples"] = (
            tokens or ZERO_WEIGHT,
            total or ZERO_WEIGHT,
        )
        return status


def without_fill(share: float | torch.Tensor, rows: float, fill: float) -> float | torch.Tensor:
    """Returns the share of filtered sequences among the real rows, from that among all: weightless
    ones are always filtered."""
    return (share * (rows + fill) - fill) / rows


upstream_actor.ActorPPOTrainer = (
    WeighingTrainer  # looked up there by `init_model_from_pretrained` (ppo_actor.py:582)
)
