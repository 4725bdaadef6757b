"""Weights that a training process keeps beside the model's own, each rank its part of them, and
puts in these ones' place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from marl_plugins.engine.processes.training_process import is_sharded, own_part

if TYPE_CHECKING:
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer


def trained_parameters(trainer: ActorPPOTrainer) -> dict[str, torch.nn.Parameter]:
    """Returns the policy's parameters that are trained, by name."""
    return {name: p for name, p in trainer.actor.model.module.named_parameters() if p.requires_grad}


def held(p: torch.nn.Parameter) -> Tensor:
    """Returns the elements of a parameter that this process has in memory (elements,): all, or with
    ZeRO 3 its share."""
    return own_part(p).detach().view(-1)


def share(p: torch.nn.Parameter) -> Tensor:
    """Returns the elements that this process keeps (elements,): with ZeRO 3 those that it has, else
    one of as many equal pieces as there are ranks; the last one may be shorter."""
    mine = held(p)
    return mine if is_sharded(p) else _own_piece(mine)


def _own_piece(whole: Tensor) -> Tensor:
    return whole.tensor_split(torch.distributed.get_world_size())[torch.distributed.get_rank()]


def put_in_place(
    parameters: Mapping[str, torch.nn.Parameter], shares: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Sets parameters to what the shares of all ranks are together, in the parameters' precision,
    and returns what they held, for `put_back`. A collective operation."""
    before = {name: held(p).cpu().clone() for name, p in parameters.items()}
    try:
        for name, p in parameters.items():
            held(p).copy_(_gathered(shares[name], p))
        _refresh(parameters.values())
    except BaseException:
        put_back(parameters, before)
        raise
    return before


def put_back(parameters: Mapping[str, torch.nn.Parameter], before: Mapping[str, Tensor]) -> None:
    """Sets parameters to what they held, bit for bit."""
    for name, p in parameters.items():
        held(p).copy_(before[name])
    _refresh(parameters.values())


def _refresh(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Renew what ZeRO 3 keeps whole of small parameters, as DeepSpeed does after a step
    (zero/stage3.py, `_post_step`)."""
    sharded: list[Any] = [p for p in parameters if is_sharded(p)]
    whole = [p for p in sharded if p.ds_persist]
    if whole:
        whole[0].partition(whole)
        whole[0].all_gather(whole)


def _gathered(mine: Tensor, p: torch.nn.Parameter) -> Tensor:
    """Returns what `held` is to become, of the shares of all ranks, on the parameter's device and
    in its precision."""
    if is_sharded(p):
        return mine.to(p.dtype)
    whole = torch.zeros(p.numel(), dtype=torch.float32, device=p.device)
    _own_piece(whole).copy_(mine)
    torch.distributed.all_reduce(whole)  # a sum with zeros is exact
    return whole.to(p.dtype)
