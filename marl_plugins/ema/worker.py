"""The moving average in one training process: the rank's share of every parameter that is trained.

Upstream averages in the weights' own precision (deepspeed.py:511), where a step of bfloat16 is 1/256 of a weight: what beta leaves
of an update is less than that, and is lost. It also counts micro-batches (deepspeed.py:504), whose number differs from fit to fit
here, and its checkpoints do not have the average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_plugins.processes.extension import Extension
from marl_plugins.processes.training_process import is_sharded, own_part

if TYPE_CHECKING:
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer


class WeightAverage(Extension):
    """The average of one policy's weights, in float32 in the host's memory."""

    def __init__(self, trainer: ActorPPOTrainer):
        super().__init__(trainer)
        self.average = {name: share(p).float().cpu().clone() for name, p in self._parameters().items()}

    def _parameters(self) -> dict[str, torch.nn.Parameter]:
        return {name: p for name, p in self.trainer.actor.model.module.named_parameters() if p.requires_grad}

    def stepped(self) -> None:
        beta = self.trainer.args.train.ema_beta
        for name, p in self._parameters().items():
            self.average[name].lerp_(share(p).float().cpu(), 1 - beta)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the average into the model, in the precision of the weights, which come back, bit for bit, afterwards."""
        parameters = self._parameters()
        kept = {name: held(p).cpu().clone() for name, p in parameters.items()}
        try:
            for name, p in parameters.items():
                held(p).copy_(gathered(self.average[name], p))
            refresh(parameters.values())
            yield
        finally:
            for name, p in parameters.items():
                held(p).copy_(kept[name])
            refresh(parameters.values())

    def state(self) -> dict[str, Tensor]:
        return self.average

    def restore(self, state: Mapping[str, Tensor]) -> None:
        for name, mine in self.average.items():
            mine.copy_(state[name])


def held(p: torch.nn.Parameter) -> Tensor:
    """Returns the elements of a parameter that this process has in memory (elements,): all, or with ZeRO 3 its share."""
    return own_part(p).detach().view(-1)


def share(p: torch.nn.Parameter) -> Tensor:
    """Returns the elements that this process averages (elements,): with ZeRO 3 those that it has, else one of as many equal pieces
    as there are ranks; the last one may be shorter."""
    mine = held(p)
    if is_sharded(p):
        return mine
    ranks, rank = torch.distributed.get_world_size(), torch.distributed.get_rank()
    return mine.tensor_split(ranks)[rank]


def refresh(parameters: Iterable[Any]) -> None:
    """Renews what ZeRO 3 keeps whole of small parameters, as DeepSpeed does after a step (zero/stage3.py, `_post_step`)."""
    whole = [p for p in parameters if is_sharded(p) and p.ds_persist]
    if whole:
        whole[0].partition(whole)
        whole[0].all_gather(whole)


def gathered(mine: Tensor, p: torch.nn.Parameter) -> Tensor:
    """Returns what `held` is to become, of the shares of all ranks, on the parameter's device and in its precision."""
    if is_sharded(p):
        return mine.to(p.dtype)
    whole = torch.zeros(p.numel(), dtype=torch.float32, device=p.device)
    share_of_whole = whole.tensor_split(torch.distributed.get_world_size())[torch.distributed.get_rank()]
    share_of_whole.copy_(mine)
    torch.distributed.all_reduce(whole)  # a sum with zeros is exact
    return whole.to(p.dtype)
