"""The training processes of a model, as its adapters see them from the controller.

A process holds the model once and a member for each adapter (worker.py). What is asked of an
adapter goes to its member:

    AdapterProcesses("solver")  ->  MemberHandle  ->  SharedActor.call("solver", "fit", ...)  ->
    AdapterActor.fit(...)

Members' collective operations have the same shapes. Were two ranks asked for two adapters in
different orders, nothing would fail: the gradients of the one would be averaged with those of the
other. So everything that is asked of a model's processes is asked under one lock, and the next
adapter's turn begins when all ranks have answered.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Iterator, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins import TrainingProcesses
from marl_plugins.adapters.worker import RemoteSharedActor

# inside: works in the training processes
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.engine.hosts.devices import ranks_of_one_sequence, training_gpus
from marl_plugins.engine.processes.launch import GroupOfOthers
from marl_plugins.engine.processes.placement import bundles

import ray  # isort: skip
from openrlhf.trainer.ray.launcher import RayActorGroup  # isort: skip  # after the host support, installed above
from ray.util.placement_group import remove_placement_group  # isort: skip

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup


class MemberHandle:
    """One rank of an adapter, called as a Ray actor of its own would be:
    `handle.fit.remote(...)`."""

    def __init__(self, process: ActorHandle, policy: str):
        self.process, self.policy = process, policy

    def __getattr__(self, method: str) -> SimpleNamespace:
        if method.startswith("_"):
            raise AttributeError(method)
        streaming = {"num_returns": "streaming"} if method == "pieces" else {}
        call = self.process.call.options(**streaming)
        return SimpleNamespace(remote=functools.partial(call.remote, self.policy, method))


class SharedProcesses:
    """The training processes of one model."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.group: RayActorGroup | None = None
        """Upstream's group, once it is launched."""
        self._placement: PlacementGroup | None = None

    def launch(self, args: SimpleNamespace, engines: PlacementGroup | None, seconds: float) -> None:
        """Begins to start the processes, once, however many adapters ask for it.

        Args:
            args: Those of any adapter: what concerns processes is equal in all.
            engines: The placement group that they share with the engines, if they do.
            seconds: How long their devices may take to be free.
        """
        if self.group is not None:
            return
        ranks = training_gpus(args)
        self._placement = bundles(ranks, seconds) if ranks > 1 and engines is None else None
        placement, share = engines or self._placement, 0.2 if engines else 1
        self.group = RayActorGroup(
            args.actor.num_nodes,
            args.actor.num_gpus_per_node,
            RemoteSharedActor,
            placement,
            share,
            ranks_of_one_sequence(args),
        )

    def handles(self) -> Sequence[ActorHandle]:
        """Returns Ray's handles of the processes, by rank."""
        return self.group._actor_handlers if self.group is not None else ()

    def member(self, policy: str, args: SimpleNamespace) -> RayActorGroup:
        """Returns an adapter's group."""
        group = GroupOfOthers(args.actor, args)
        group._actor_handlers = [MemberHandle(handle, policy) for handle in self.handles()]
        return group

    def end(self) -> None:
        """Ends all processes, and gives their devices back."""
        for handle in self.handles():
            with contextlib.suppress(ray.exceptions.RayActorError):
                ray.kill(handle)
        if self._placement is not None:
            remove_placement_group(self._placement)
        self.group, self._placement = None, None


class AdapterProcesses(TrainingProcesses):
    """An adapter's training processes, which it shares with the other adapters of its model.

    The end of one is the end of all: an adapter without the others' processes has none either.

    Args:
        shared: The processes of its model.
        spec: Parameters of the processes.
    """

    def __init__(self, shared: SharedProcesses, spec: TrainingSpec):
        super().__init__(spec)
        self.shared = shared
        self._turn: set[asyncio.Future[Any]] | None = None
        """What is awaited of the processes in this adapter's turn; None while it is not."""

    def launch(self, shared: PlacementGroup | None) -> None:
        """Begins to start the processes, unless another adapter has; the first one owns the
        engines."""
        self.shared.launch(self.args, shared, self.silence)
        self.groups = {"policy": self.shared.member(self.policy, self.args)}

    @property
    def with_reference(self) -> bool:
        """Returns whether a reference is needed: it is the model without the adapter, on all
        devices."""
        return bool(self.args.algo.kl.init_coef > 0)

    @contextlib.asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        """Waits until no other adapter of the model computes; the one that has asked first is next.

        A turn that is given up ends when what was asked in it has been answered: until then ranks
        may still be asked for it.
        """
        await self.shared.lock.acquire()
        self._turn = set()
        try:
            yield
        finally:
            left, self._turn = asyncio.gather(*self._turn, return_exceptions=True), None
            if left.done():
                self.shared.lock.release()
            else:
                left.add_done_callback(lambda _: self.shared.lock.release())

    async def await_work(self, doing: str, *work: Any) -> Any:
        """See `TrainingProcesses.await_work`; work of a turn goes on when it is given up."""
        if self._turn is None:
            return await super().await_work(doing, *work)
        task = asyncio.ensure_future(super().await_work(doing, *work))
        self._turn.add(task)
        task.add_done_callback(self._turn.discard)
        return await asyncio.shield(task)

    async def weights(self) -> list[ObjectRef]:
        """Returns a reference to the adapter, which is one piece."""
        async with self.active():
            return await super().weights()

    def handles(self) -> Iterator[ActorHandle]:
        yield from self.shared.handles()

    def end(self) -> None:
        super().end()
        self.shared.end()
