"""A policy with engines only that hold weights of a trained one, its newest or earlier ones; on CPU."""

from __future__ import annotations

from typing import Any

import ray

from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.runtime.policy import UpstreamPolicy


class FollowingPolicy(UpstreamPolicy):
    """A `Follower` (core/processes.py); until it is synced for the first time its engines hold the model that they have loaded."""

    followed: UpstreamPolicy | None = None
    """The policy that it follows, where that one is trained in this run."""
    _held: Any = None
    """Ray's reference to the weights that the engines hold, for an engine that replaces one of them."""

    async def weights(self) -> bytes:
        """See `Follower.weights`."""
        assert self.followed is not None, f"policy {self.spec.follows!r}, which {self.name!r} follows, is not in this run"
        processes = self.followed.processes
        weights: bytes = await processes.await_work(f"gave its weights to {self.name!r}", await processes.weights())
        return weights

    async def sync(self, version: int) -> bool:
        """Bring the engines to the newest weights of the policy that it follows, and call these `version`."""
        return await self.hold(await self.weights(), version)

    async def hold(self, weights: bytes, version: int) -> bool:
        """See `Follower.hold`."""
        held, name = await in_daemon_thread(ray.put, weights), self.name
        self._held, self.version = held, version  # first, for an engine that is replaced meanwhile
        with self.engines.changing(version):
            await self.engines.on_all(lambda handle: handle.load_state.remote(held, name, version))
        return True

    async def restore_engine(self, handle: Any) -> None:
        """Give a new engine the weights that the others hold."""
        if self._held is None:
            await super().restore_engine(handle)
        else:
            await handle.load_state.remote(self._held, self.name, self.version)
