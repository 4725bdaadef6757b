"""The engines of one policy, and whose weights they hold: its own newest ones, or those of the
policy that it follows.

Policies may share their engines, which hold the weights of each (`ProcessBackend.engines_of`); one
of them owns these.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import ray

from marl_plugins.core.policy import Policy
from marl_plugins.core.process_backend import EngineKind
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.engine.plan.signature import engine_signature
from marl_plugins.engine.processes.engines import (
    EnginePool,
    RestartBudget,
    start_engine,
)
from marl_plugins.engine.processes.launch import TrainingProcesses

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
    """

    followed: PolicyEngines | None = None
    """The policy that this one follows, where that one is trained in this run."""
    _held: ObjectRef | None = None
    """Ray's reference to the weights that `hold` gave the engines, for an engine that replaces one
    of them."""

    def __init__(
        self,
        spec: Policy,
        args: SimpleNamespace,
        device: str,
        restarts: RestartBudget,
        silence: float,
        training: TrainingProcesses | None,
        shared: EnginePool | None = None,
        kind: EngineKind | None = None,
    ):
        self.spec, self.name, self.args, self.device, self.training = (
            spec,
            spec.name,
            args,
            device,
            training,
        )
        self.version, self.kind, self.owns_engines = 0, kind, shared is None
        if shared is not None:
            self.engines = shared
            shared.serve(spec.name, self.restore_engine)
            return
        replaceable = device == "cpu" or (training is not None and not self.broadcasts)
        replace = functools.partial(start_engine, args, silence, kind) if replaceable else None
        self.engines = EnginePool(
            spec.name, [], replace, self.restore_engine, restarts, silence, args.balance.in_flight
        )
        self.engines.signature = engine_signature(args)

    @property
    def trained(self) -> bool:
        """Returns whether it is updated, whether or not its processes are running."""
        return self.spec.trainable

    @property
    def broadcasts(self) -> bool:
        """Returns whether its engines get weights by upstream's broadcast, and so begin with the
        model that it begins with."""
        return self.training is not None and self.training.broadcasts

    @property
    def processes(self) -> TrainingProcesses:
        """The training processes of a policy that is trained."""
        assert self.training is not None, f"policy {self.name!r} is frozen"
        return self.training

    async def weights(self) -> bytes:
        """See `Follower.weights`: the current weights, as safetensors; a policy that follows
        another one gives that one's."""
        source = self.followed or self
        assert source.training is not None, (
            f"policy {self.spec.follows!r}, which {self.name!r} follows, is not in this run"
        )
        weights: bytes = await source.processes.await_work(
            f"gave its weights to {self.name!r}", await source.processes.weights()
        )
        return weights

    async def sync(self, version: int) -> bool:
        """Brings the engines to the current weights of the policy, or of the one that it follows,
        and calls these `version`."""
        if self.spec.follows:
            return await self.hold(await self.weights(), version)
        self.version, self._held, name, on_all = version, None, self.name, self.engines.on_all
        done = functools.partial(self.processes.await_work, f"gave its engines version {version}")
        with self.engines.changing(name, version):
            if not self.broadcasts:
                blob = await self.processes.weights_to_sync()
                await done(on_all(lambda handle: handle.load_state.remote(blob, name, version)))
            else:
                # What upstream's trainer does (ppo_trainer.py:311-316), which waits for engines
                # without a limit.
                training = self.processes.groups["policy"]
                await done(*training.async_run_method("check_finite"))
                if self.args.vllm.enable_sleep:
                    await on_all(lambda handle: handle.wake_up.remote(tags=["weights"]))
                await done(*training.async_run_method("broadcast_to_vllm"))
                await done(on_all(lambda handle: handle.identify.remote(name, version)))
        return True

    async def hold(self, weights: bytes, version: int) -> bool:
        """See `Follower.hold`: bring the engines to these weights and call them `version`."""
        held, name = await in_daemon_thread(ray.put, weights), self.name
        self._held, self.version = held, version  # first, for an engine that is replaced meanwhile
        with self.engines.changing(name, version):
            await self.engines.on_all(lambda handle: handle.load_state.remote(held, name, version))
        return True

    async def wake(self) -> None:
        """Wakes the engines that share their devices with the training processes, before a
        rollout."""
        if self.args.vllm.enable_sleep and self.owns_engines:
            await self.engines.on_all(lambda handle: handle.wake_up.remote())

    async def sleep(self) -> None:
        """Gives the devices to the training processes after a rollout, as upstream does
        (samples_generator.py:100-113)."""
        if self.args.vllm.enable_sleep and self.owns_engines:
            await self.engines.on_all(lambda handle: handle.sleep.remote())

    async def restore_engine(self, handle: ActorHandle) -> None:
        """Gives a new engine the weights that the others hold; those of a frozen policy it has
        loaded itself."""
        if self._held is not None:
            await handle.load_state.remote(self._held, self.name, self.version)
        elif self.trained:
            await self.processes.restore(handle, self.version)
        else:
            await handle.identify.remote(self.name, self.version)
