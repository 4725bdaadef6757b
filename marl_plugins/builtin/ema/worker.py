"""The moving average in one training process: the rank's share of every parameter that is trained.

Upstream averages in the weights' own precision (deepspeed.py:511), where a step of bfloat16 is
1/256 of a weight: what beta leaves of an update is less than that, and is lost. It also counts
micro-batches (deepspeed.py:504), whose number differs from fit to fit here, and its checkpoints do
not have the average.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from torch import Tensor

from marl_plugins.engine.processes.extension import Extension
from marl_plugins.engine.processes.weights_in_place import (
    put_back,
    put_in_place,
    share,
    trained_parameters,
)

if TYPE_CHECKING:
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer


class WeightAverage(Extension):
    """The average of one policy's weights, in float32 in the host's memory."""

    def __init__(self, trainer: ActorPPOTrainer):
        super().__init__(trainer)
        self.average = {
            name: share(p).float().cpu().clone() for name, p in trained_parameters(trainer).items()
        }

    def stepped(self) -> None:
        beta = self.trainer.args.train.ema_beta
        for name, p in trained_parameters(self.trainer).items():
            self.average[name].lerp_(share(p).float().cpu(), 1 - beta)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the average into the model, in the precision of the weights, which come back, bit
        for bit, afterwards."""
        parameters = trained_parameters(self.trainer)
        before = put_in_place(parameters, self.average)
        try:
            yield
        finally:
            put_back(parameters, before)

    def state(self) -> dict[str, Tensor]:
        return self.average

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, mine in self.average.items():
            mine.copy_(state[name])
