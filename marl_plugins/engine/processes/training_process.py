"""The part that training processes of policies and critics have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from marl_plugins.engine.processes.master_port import MasterPort

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer
    from openrlhf.utils.deepspeed import DeepspeedStrategy


class TrainingProcess(MasterPort):
    """Fits of whole accumulation windows, and finite weights."""

    engine: DeepSpeedEngine
    """DeepSpeed's engine of the model that is trained."""
    strategy: DeepspeedStrategy
    trainer: ActorPPOTrainer
    _world_size: int

    def lay_out(self, epochs: Sequence[Sequence[Sequence[int]]]) -> None:
        """Takes this rank's micro-batches, as indices of its sequences (engine/runtime/layout.py),
        before each `fit`."""
        self.trainer.replay_buffer.lay_out(epochs)

    def prepare_fit(self, accumulation: int, seed: int) -> None:
        """Sets how many micro-batches make an optimiser step this time, and a seed, before each
        `fit`.

        `micro_steps = 0` makes the accumulation windows begin with the first micro-batch, whatever
        the fit before left over.
        """
        self.engine.set_train_batch_size(
            self.strategy.micro_train_batch_size * accumulation * self._world_size
        )
        self.engine.micro_steps = 0
        self.strategy.accumulated_gradient = accumulation
        torch.manual_seed(seed)

    def in_whole_windows(self, fit: Callable[[], dict[str, float]]) -> dict[str, float]:
        """Fits, and asserts that it ended at the end of an accumulation window, so that no gradient
        is carried over."""
        before, batches = self.engine.global_steps, len(self.trainer.replay_buffer)
        status = fit()
        carried = self.engine.micro_steps % self.engine.gradient_accumulation_steps()
        if carried:
            raise RuntimeError(
                f"{carried} of {self.engine.gradient_accumulation_steps()} micro-batches carried "
                "over the fit's end"
            )
        return {
            **status,
            "optimiser_steps": self.engine.global_steps - before,
            "micro_batches": batches,
        }

    def check_finite(self) -> None:
        """Checks the weights before they are synced or saved.

        Raises:
            FloatingPointError: A weight is not finite; names the tensors.
        """
        broken = [
            name
            for name, p in self.engine.module.named_parameters()
            if not torch.isfinite(own_part(p)).all()
        ]
        if broken:
            raise FloatingPointError(f"weights that are not finite: {', '.join(broken[:5])}")


def is_sharded(parameter: torch.nn.Parameter) -> bool:
    """Returns whether this process holds a share of a parameter, as with ZeRO 3."""
    return hasattr(parameter, "ds_tensor")


def own_part(parameter: torch.nn.Parameter) -> torch.Tensor:
    """Returns the elements of a parameter that this process holds: all, or with ZeRO 3 its share.

    DeepSpeed makes all shares the same length and never sets what is beyond the parameter's end
    (zero/partition_parameters.py:1808
    and 1844-1850 of 0.19.6): that may be anything, also not a number.
    """
    share: torch.Tensor | None = getattr(parameter, "ds_tensor", None)
    if share is None:
        return parameter
    group, count = (getattr(parameter, name) for name in ("ds_process_group", "ds_numel"))
    return share[: max(0, count - torch.distributed.get_rank(group) * share.numel())]
