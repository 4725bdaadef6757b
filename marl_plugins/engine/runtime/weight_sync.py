"""The weights of trained policies to their engines, and to the engines of the policies that follow
them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager

from marl_plugins.core.concurrency import all_of
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.run import is_partial
from marl_plugins.engine.runtime.policy import UpstreamPolicy
from marl_plugins.engine.runtime.session import Session


class WeightSync:
    """Brings engines to the weights of their policies, by `marl_sync`; built in is
    `PolicyEngines.sync` (builtin/upstream.py)."""

    def __init__(self, session: Session):
        self.session = session

    async def begin(self) -> None:
        """Syncs what a run begins with: engines have loaded the original models, no adapters, and
        on CPU in float32 whatever is trained."""
        await self.again()
        await self._follow(self.session.trained)

    async def updated(self, names: Sequence[str]) -> None:
        """Syncs every updated policy's engines to its new weights, then those of the policies that
        follow it."""
        async with self._paused(names):
            await self._bring({name: self.session.trained[name].version + 1 for name in names})
            await self._follow(names)

    @asynccontextmanager
    async def _paused(self, names: Collection[str]) -> AsyncIterator[None]:
        """Lets the engines of some policies, and of those that follow them, pause meanwhile; what
        fails in it ends the run.

        All at once: policies may share engines (`PolicyProcesses.engines`), and a policy and its
        follower play in one trajectory. Without `--train.partial_rollout_enable` nobody asks them
        for anything.
        """
        if not is_partial(self.session.plan.run.args):
            yield
            return
        concerned = [
            p for p in self.session.policies.values() if p.name in names or p.spec.follows in names
        ]
        pools = dict.fromkeys(policy.engines for policy in concerned)
        await all_of(pool.pause() for pool in pools)
        yield
        await all_of(pool.resume() for pool in pools)

    async def again(self) -> None:
        """Syncs the weights that the engines of trained policies had before others were put in
        their place."""
        await self._bring({name: p.version for name, p in self.session.trained.items()})

    async def _bring(self, versions: Mapping[str, int]) -> None:
        """Syncs policies; no engine wakes before all weights are in the host's memory, because it
        may share a device with training processes."""
        trained = self.session.trained
        await all_of(trained[name].collect() for name in versions)
        await all_of(self._sync(trained[name], version) for name, version in versions.items())

    async def _follow(self, names: Collection[str]) -> None:
        versions = {name: self.session.trained[name].version for name in names}
        following = [p for p in self.session.policies.values() if p.spec.follows in versions]
        await all_of(self._sync(policy, versions[policy.spec.follows]) for policy in following)

    async def _sync(self, policy: UpstreamPolicy, version: int) -> None:
        """Syncs one policy.

        Raises:
            RunEnded: It did not happen; what is sampled next would be trained by other weights than
                sampled it.
        """
        plan = self.session.plan
        done = await plan.plugins.hook.marl_sync(run=plan.run, policy=policy, version=version)
        if not done or (
            policy.trained and policy.version != version
        ):  # one that follows may hold an earlier version
            raise RunEnded(
                f"the engines of policy {policy.name!r} were not brought to version {version} "
                f"(marl_sync returned {done!r})"
            )
