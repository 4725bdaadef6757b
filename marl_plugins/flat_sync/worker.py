"""Weight sync on GPUs in buckets: one call and one transfer for many parameters, instead of
upstream's one of each per parameter (ppo_actor.py:409-490, vllm_worker_wrap.py).

    trainer   the parameters of one dtype, laid end to end in a buffer of at most `--flat_sync.mb`
              MB, broadcast on upstream's own group; where engines share devices with training
              processes, as one CUDA IPC handle per rank
    worker    cuts the buffer into views, and loads these as upstream's loads its one

The processes of engines import this module, and must not import DeepSpeed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import ray
import torch
from torch import Tensor

from marl_plugins import Extension


@dataclass(frozen=True)
class Bucket:
    """Parameters of one dtype that travel together.

    Args:
        shapes: Of the whole parameters, by name.
    """

    dtype: torch.dtype
    shapes: Mapping[str, torch.Size]

    def pack(self, values: Iterable[Tensor]) -> Tensor:
        """Returns the parameters' values, in the order of their names, as one tensor
        (elements,)."""
        return torch.cat([value.detach().reshape(-1) for value in values])

    def empty(self, device: Any) -> Tensor:
        """Makes room for what `pack` gives."""
        return torch.empty(
            sum(map(math.prod, self.shapes.values())), dtype=self.dtype, device=device
        )

    def unpack(self, flat: Tensor) -> list[tuple[str, Tensor]]:
        """Returns each parameter's name and value, a view of `flat`."""
        values = torch.split(flat, [math.prod(shape) for shape in self.shapes.values()])
        return [
            (name, value.view(shape))
            for (name, shape), value in zip(self.shapes.items(), values, strict=True)
        ]


def buckets(
    parameters: Iterable[tuple[str, torch.dtype, torch.Size]], limit: int
) -> Iterator[Bucket]:
    """Yields parameters in buckets of at most `limit` bytes; a larger one has its own."""
    open_ones: dict[torch.dtype, dict[str, torch.Size]] = {}
    sizes: dict[torch.dtype, int] = {}
    for name, dtype, shape in parameters:
        size = math.prod(shape) * dtype.itemsize
        if dtype in open_ones and sizes[dtype] + size > limit:
            yield Bucket(dtype, open_ones.pop(dtype))
        sizes[dtype] = size + (sizes[dtype] if dtype in open_ones else 0)
        open_ones.setdefault(dtype, {})[name] = shape
    yield from (Bucket(dtype, shapes) for dtype, shapes in open_ones.items())


class FlatSync(Extension):
    """Sends the weights in buckets of `--flat_sync.mb` MB, in place of upstream's broadcast."""

    def sync(self, following: Callable[[], None]) -> None:
        send(self.trainer, self.trainer.args.flat_sync.mb * 10**6)


def send(trainer: Any, limit: int) -> None:
    """Brings the engines to the policy's weights; called on every rank.

    Args:
        trainer: Upstream's `ActorPPOTrainer`, whose group, engines and flags are taken.
        limit: Bytes of a bucket.
    """
    import deepspeed

    args, engines, first = (
        trainer.strategy.args,
        trainer.vllm_engines,
        torch.distributed.get_rank() == 0,
    )
    resets = (
        [e.reset_prefix_cache.remote() for e in engines]
        if first and args.vllm.enable_prefix_caching
        else []
    )
    torch.cuda.empty_cache()
    sharded = args.ds.zero_stage == 3
    parameters = dict(trainer.actor.model.module.named_parameters())
    described = ((n, p.dtype, p.ds_shape if sharded else p.shape) for n, p in parameters.items())
    for bucket in buckets(described, limit):
        mine = [parameters[name] for name in bucket.shapes]
        with deepspeed.zero.GatheredParameters(mine, enabled=sharded):
            flat = bucket.pack(mine) if first or trainer.use_cuda_ipc else None
        handles = _handles(flat) if trainer.use_cuda_ipc else None
        if first:
            taken = [engine.in_workers.remote(take, bucket, handles) for engine in engines]
            if handles is None:
                trainer._model_update_group.broadcast(
                    flat, src=0, stream=torch.cuda.current_stream()
                )
            ray.get(taken)
        torch.distributed.barrier()  # an engine reads what an IPC handle points to
        torch.cuda.synchronize()
    ray.get(resets)
    torch.cuda.empty_cache()
    torch.distributed.barrier()


def _handles(flat: Tensor | None) -> dict[str, Any]:
    """A handle of each rank's buffer by its device, as upstream's `_handle_cuda_ipc` makes one of
    each parameter."""
    from openrlhf.trainer.ray.utils import get_physical_gpu_id
    from torch.multiprocessing import reductions

    handle = reductions.reduce_tensor(flat)  # type: ignore[no-untyped-call]
    every: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(every, (get_physical_gpu_id(), handle))
    return dict(every)


def take(worker: Any, bucket: Bucket, handles: Mapping[str, Any] | None) -> None:
    """Receives a bucket, inside a vLLM worker, and loads its parameters.

    Args:
        handles: See `_handles`; None where the bucket is broadcast.
    """
    if handles is None:
        flat = bucket.empty(worker.device)
        worker._model_update_group.broadcast(flat, src=0, stream=torch.cuda.current_stream())
    else:
        from openrlhf.trainer.ray.utils import get_physical_gpu_id

        rebuild, arguments = handles[get_physical_gpu_id()]
        arguments = list(arguments)
        arguments[6] = (
            worker.device.index
        )  # the number of the device differs between processes (vllm_worker_wrap.py:66-70)
        flat = rebuild(*arguments)
    worker.model_runner.model.load_weights(weights=bucket.unpack(flat))
    torch.cuda.synchronize()
