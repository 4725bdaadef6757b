"""The engines of one policy, and whose weights they hold: its own newest ones, or those of the
policy that it follows.

Policies may share their engines, which hold the weights of each (`ProcessBackend.engines_of`); one
of them owns these.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy
import ray

from marl_plugins.core.policy import Policy
from marl_plugins.core.process_backend import EngineKind
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.engine.plan.signature import engine_signature
from marl_plugins.engine.processes.engines import (
    EnginePool,
    EngineProcess,
    RestartBudget,
    start_engine,
)
from marl_plugins.engine.processes.launch import TrainingProcesses
from marl_plugins.engine.processes.pieces import joined

if TYPE_CHECKING:
    from types import SimpleNamespace

    from ray import ObjectRef
    from ray.actor import ActorHandle


class PolicyEngines:
    """A policy's engines, woken, given weights and replaced.

    Args:
        training: The policy's training processes; None for one that is not trained.
        shared: The engines of another policy that answer for this one too; None: it has its own.
        kind: What its own engines are; None: as always.
        node: Ray's id of the node that its processes are to be on; empty: any.
    """

    followed: PolicyEngines | None = None
    """The policy that this one follows, where that one is trained in this run."""
    _held: Sequence[ObjectRef] | None = None
    """The weights that the engines have or are about to have, in pieces, for an engine that
    replaces one of them; None before the first time."""

    def __init__(
        self,
        spec: Policy,
        args: SimpleNamespace,
        restarts: RestartBudget,
        silence: float,
        training: TrainingProcesses | None,
        shared: EnginePool | None = None,
        kind: EngineKind | None = None,
        node: str = "",
    ):
        self.node = node
        self.spec, self.name, self.args, self.training = spec, spec.name, args, training
        self.version, self.kind, self.owns_engines = 0, kind, shared is None
        self._settled = asyncio.Event()
        """Not from `collect` to `sync`: a new engine waits for what it is to be given."""
        self._settled.set()
        if shared is not None:
            self.engines = shared
            shared.serve(spec.name, self.restore_engine)
            return

        def replacement(dead: EngineProcess) -> EngineProcess:
            if training is not None:
                training.check_nodes()  # else devices are waited for that the run cannot use
            return start_engine(args, dead.shared, dead.number, silence, kind, node)

        self.engines = EnginePool(
            spec.name,
            [],
            replacement,
            self.restore_engine,
            restarts,
            silence,
            args.balance.in_flight,
        )
        self.engines.signature = engine_signature(args)

    @property
    def trained(self) -> bool:
        """Returns whether it is updated, whether or not its processes are running."""
        return self.spec.trainable

    @property
    def processes(self) -> TrainingProcesses:
        """The training processes of a policy that is trained."""
        assert self.training is not None, f"policy {self.name!r} is frozen"
        return self.training

    async def weights(self) -> bytes:
        """See `Follower.weights`: the current weights, as safetensors; a policy that follows
        another one gives that one's."""
        pieces = await self._source.processes.weights()
        return await in_daemon_thread(joined, await asyncio.gather(*pieces))

    @property
    def _source(self) -> PolicyEngines:
        """The policy whose weights it has."""
        return self.followed or self

    async def collect(self) -> None:
        """Brings the weights of its processes into Ray's store, for `sync`; what engines had is
        given up first, because there need not be room for both."""
        self._settled.clear()
        self._held = None
        self._held = await self.processes.weights()

    async def sync(self, version: int) -> bool:
        """Brings the engines to the current weights of the policy, or of the one that it follows,
        and calls these `version`."""
        source = self._source
        if source is self and self._settled.is_set():
            await self.collect()
        return await self.give(source._held or await source.processes.weights(), version)

    async def hold(self, weights: bytes, version: int) -> bool:
        """See `Follower.hold`: bring the engines to these weights and call them `version`."""
        piece = [numpy.frombuffer(weights, numpy.uint8)]
        return await self.give([await in_daemon_thread(ray.put, piece)], version)

    async def give(self, pieces: Sequence[ObjectRef], version: int) -> bool:
        """Brings the engines to weights in pieces, and calls them `version`."""
        # First, for an engine that is replaced meanwhile.
        self._held, self.version, name = pieces, version, self.name
        self._settled.set()
        await self._make_room()
        with self.engines.changing(name, version):
            await self.engines.on_all(
                lambda handle: handle.load_state.remote(pieces, name, version)
            )
        return True

    async def _make_room(self) -> None:
        """Waits until training processes that come and go have left the engines' devices."""
        if self.training is not None and self.args.vllm.enable_sleep:
            await self.training.vacate()

    async def wake(self) -> None:
        """Wakes the engines that share their devices with the training processes, before a
        rollout."""
        if self.args.vllm.enable_sleep and self.owns_engines:
            await self._make_room()
            self.engines.asleep = False
            await self.engines.on_all(lambda handle: handle.wake_up.remote())

    async def sleep(self) -> None:
        """Gives the devices to the training processes after a rollout, as upstream does
        (samples_generator.py:100-113)."""
        if self.args.vllm.enable_sleep and self.owns_engines:
            self.engines.asleep = True
            await self.engines.on_all(lambda handle: handle.sleep.remote())

    async def restore_engine(self, handle: ActorHandle) -> None:
        """Gives a new engine the weights that the others hold; those that a policy begins with it
        has loaded itself."""
        await self._settled.wait()
        if self._held is not None:
            await handle.load_state.remote(self._held, self.name, self.version)
        else:
            await handle.identify.remote(self.name, self.version)
