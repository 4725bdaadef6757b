"""Training processes that exist only while their policy computes, on seats that the policies share.

    async with processes.active():     the policy has its seats, and processes in them that know all
                                       that they knew before

A process is not moved: its state is taken out (training_state.py), it is killed, and another one
goes on with the state. That is a spare, which waits in each seat, is used once and has done
beforehand what takes time: imports, loading of operators, and the first touch of memory, its own
and that of the states that wait. The controller owns the states, in Ray's store. Who computes when
changes nothing that is computed.

Engines may have the same devices (`--train.colocate_all`): nobody is in a seat while they are
awake.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marl_plugins import RunEnded, TrainingProcesses

# inside: works in the training processes
from marl_plugins.core.process_backend import TrainingSpec
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.hosts.devices import critic_gpus, training_gpus
from marl_plugins.engine.hosts.prebuild import clear_abandoned_locks, extensions_folder
from marl_plugins.engine.processes.deaths import DEATHS
from marl_plugins.engine.processes.launch import GroupOfOthers, all_streamed, not_started
from marl_plugins.engine.processes.placement import EnginePlace, ready
from marl_plugins.engine.processes.watchdog import locate
from marl_plugins.process_groups.seats import Grant, Seat, Seating, SeatRequest, Seats
from marl_plugins.process_groups.worker import RemoteCriticActor, RemotePolicyActor

SPARES_ON_GPUS = 2
"""In each seat. On CPU, where a spare is forked in no time, there is one; here it imports for ten
seconds or more, and a policy may leave sooner."""
TOUCHED_BYTES = 2 * 10**9
"""Most bytes that a spare touches beforehand, and so holds while it waits."""
MAX_DEAD_SPARES = 3
"""Spares that may die one after the other before one is ready."""


class SeatRoom:
    """The seats of a run, their spares, and the policies that share them.

    Args:
        critics: Whether there are critics, which have spares of their own kind.
        silence: Seconds after which a spare that is not ready ends the run.
        state: Bytes of the largest policy's state. Loading takes as much again.
        engines: The seats that policies' engines have as well.
    """

    def __init__(
        self,
        seating: Seating,
        critics: bool,
        silence: float,
        state: float = 0.0,
        engines: Mapping[str, Sequence[Seat]] | None = None,
    ):
        self.seats = Seats(seating)
        self.engines = engines or {}
        self.silence = silence
        self.touched = min(TOUCHED_BYTES, int(2 * state))
        self.kinds = {
            "policy": RemotePolicyActor,
            **({"critic": RemoteCriticActor} if critics else {}),
        }
        self.spares = 1 if cpu.device() == "cpu" else SPARES_ON_GPUS
        crowd = Counter(seat for seats in self.engines.values() for seat in seats)
        # The one that computes, one that has been killed and is not gone yet, spares, and engines.
        most = 2 + self.spares * len(self.kinds) + max(crowd.values(), default=0)
        self.share = math.floor(10_000 / most) / 10_000
        """Of a seat, for each process in it; Ray counts in ten thousandths."""
        self.members: dict[str, SeatedProcesses] = {}
        self.changes: list[float] = []
        """Seconds of each time that a policy was given processes, since the last `metrics`."""
        self.nodes: list[Any] = []
        """The placement group of each node, a bundle for a seat: its processes are on one node."""
        self._spares: dict[tuple[Seat, str], list[tuple[Any, Any]]] = {}
        """Handles of processes, and what to wait for until each is ready; the oldest first."""
        self._granted: dict[SeatRequest, asyncio.Future[Grant]] = {}

    def open(self) -> None:
        """Reserves the seats and begins to start spares in each."""
        seating = self.seats.seating
        bundles = [{"GPU": 1, "CPU": 1}] * seating.seats
        self.nodes = [
            placement_group(bundles, strategy="STRICT_PACK") for _ in range(seating.nodes)
        ]
        for group in self.nodes:
            ready(group, self.silence)
        self.refill(
            [Seat(node, number) for node in range(seating.nodes) for number in range(seating.seats)]
        )

    def close(self) -> None:
        """Ends the spares and gives the seats back."""
        for spares in self._spares.values():
            for handle, _ in spares:
                with contextlib.suppress(RayActorError):
                    ray.kill(handle)
        for group in self.nodes:
            remove_placement_group(group)
        self._spares, self.nodes = {}, []

    def refill(self, seats: Sequence[Seat]) -> None:
        """Begins to start the spares that seats lack."""
        for seat in seats:
            for kind in self.kinds:
                spares = self._spares.setdefault((seat, kind), [])
                spares += [self._start(seat, kind) for _ in range(self.spares - len(spares))]

    def _start(self, seat: Seat, kind: str) -> tuple[Any, Any]:
        here = PlacementGroupSchedulingStrategy(
            self.nodes[seat.node], placement_group_bundle_index=seat.number
        )
        process = self.kinds[kind].options(
            num_cpus=self.share, num_gpus=self.share, scheduling_strategy=here
        )
        handle = process.remote(1, 0, None, None)
        waiting = [
            part
            for member in self.members.values()
            for state in member.states.get(kind, ())
            for part in state
            if len(self.nodes) == 1  # else it would fetch those of other nodes
        ]
        return handle, handle.warm_up.remote(self.touched, waiting)

    async def spare(self, seat: Seat, kind: str) -> Any:
        """Returns a spare of a seat, ready; it is the caller's.

        Raises:
            RunEnded: None becomes ready.
        """
        why = ""
        for _ in range(MAX_DEAD_SPARES):
            spares = self._spares.get((seat, kind))
            handle, ready = spares.pop(0) if spares else self._start(seat, kind)
            try:
                async with asyncio.timeout(self.silence):
                    await ready
                    await handle.__ray_ready__.remote()  # it may have died since
                return handle
            except DEATHS as error:
                # It may have held the lock of an operator, for which the next one would wait for
                # ever.
                clear_abandoned_locks(extensions_folder(cpu.device()))
                why = (
                    f"{MAX_DEAD_SPARES} died one after the other, the last: "
                    f"{str(error).splitlines()[0]}"
                )
            except TimeoutError:
                why = f"one was not ready after {self.silence:g} s (limits.silence_seconds)"
                break
        raise RunEnded(
            f"no training process became ready in seat {seat.number} of node {seat.node}: {why}"
        )

    async def take(self, policy: str, count: int) -> Grant:
        """Waits until a policy has its seats. Those who have to leave them are on their way out."""
        loop = asyncio.get_running_loop()
        request = self.seats.ask(policy, count)
        granted: asyncio.Future[Grant] = loop.create_future()
        self._granted[request] = granted
        loop.call_soon(self._hand_out)  # when all who ask at the same time have asked
        try:
            return await granted
        except asyncio.CancelledError:
            self.seats.withdraw(request)
            if self._granted.pop(request, None) is None:
                self.give_back(policy)
            raise

    def give_back(self, policy: str) -> None:
        """Notes that a policy's work is done; its processes stay until their seats are needed."""
        self.seats.give_back(policy)
        asyncio.get_running_loop().call_soon(self._hand_out)

    async def vacate(self) -> None:
        """Waits until nobody who rests is in a seat."""
        for name in self.seats.resting:
            self.members[name].leave()
            self.seats.leave(name)
        await self.left()

    async def left(self) -> None:
        """Waits until seats that policies had to leave are free."""
        await asyncio.gather(*(member.left() for member in self.members.values()))

    def _hand_out(self) -> None:
        while grant := self.seats.grant():
            for name in grant.leaving:
                self.members[name].leave()
            granted = self._granted.pop(grant.request)
            if not granted.cancelled():  # else whoever has given it up gives the seats back
                granted.set_result(grant)

    def metrics(self) -> dict[str, float]:
        """Returns the metrics of the step: how many times a policy was given processes, and the
        seconds from its seats being free to having them."""
        changes, self.changes = self.changes, []
        return {
            "process_groups/changes": float(len(changes)),
            "process_groups/seconds": sum(changes),
        }


class SeatedProcesses(TrainingProcesses):
    """A policy's training processes, and its critic's, which share their seats with those of other
    policies.

    Args:
        room: The seats.
        spec: Parameters of the processes.
    """

    lasting = False

    def __init__(self, room: SeatRoom, spec: TrainingSpec):
        super().__init__(spec)
        self.args.ds.enable_sleep = False  # who leaves a device has nothing to offload
        self.room = room
        room.members[self.policy] = self
        self.states: dict[str, list[Any]] = {}
        """By group, references to the state of each process, in parts; empty while the processes
        are there, and before their first time."""
        self._weights: list[Any] | None = None
        """References to the current weights, in pieces, once they are known."""
        self._leaving: asyncio.Task[None] | None = None
        self._changing = asyncio.Lock()

    @property
    def with_reference(self) -> bool:
        """See `TrainingProcesses.with_reference`: it comes and goes with them, on GPUs too."""
        return bool(self.args.algo.kl.init_coef > 0)

    def place(self) -> EnginePlace:
        """See `TrainingProcesses.place`: some of the seats, which have been reserved."""
        seat, *_ = self.room.engines[self.policy]
        first = seat.number // self.args.vllm.tensor_parallel_size
        return EnginePlace(self.room.nodes[seat.node], first, self.room.share)

    async def vacate(self) -> None:
        """See `TrainingProcesses.vacate`; nobody else's processes stay either."""
        await self.room.vacate()

    def launch(self, shared: Any) -> None:
        """Starts nothing: that waits until the policy computes for the first time."""
        self.groups["policy"] = GroupOfOthers(self.args.actor, self.args)
        if critic_gpus(self.args):
            self.groups["critic"] = GroupOfOthers(self.args.critic, self.args)

    @contextlib.asynccontextmanager
    async def active(self) -> AsyncIterator[None]:
        """Holds the processes in place while they are asked for something."""
        grant = await self.room.take(self.policy, training_gpus(self.args) + critic_gpus(self.args))
        try:
            # All, not only those that this grant made leave: an earlier one, given up or still
            # waiting, may have had these seats.
            await self.room.left()
            async with self._changing:
                if not any(self.handles()):
                    await self._enter(grant.seats)
            yield
        finally:
            self.room.give_back(self.policy)

    async def _enter(self, seats: Sequence[Seat]) -> None:
        """Give the policy processes in its seats, with the state of those before them."""
        started, places = time.monotonic(), iter(seats)
        try:
            for kind, group in self.groups.items():
                await self._assign(kind, group, places)
            self.where = list(await asyncio.gather(*(locate(handle) for handle in self.handles())))
            await self._load()
        except (
            BaseException
        ):  # it may be given up, and the run go on to save: these know only a part of the state
            self._empty()
            raise
        self.states = {}
        self.room.changes.append(time.monotonic() - started)
        self.room.refill(seats)

    async def _assign(self, kind: str, group: Any, places: Iterator[Seat]) -> None:
        ranks = {"policy": training_gpus, "critic": critic_gpus}[kind](self.args)
        handles = [await self.room.spare(next(places), kind) for _ in range(ranks)]
        group._actor_handlers, doing = handles, "was given its processes"
        address, port = await self.await_work(doing, handles[0].assign.remote(ranks, 0, None, None))
        await self.await_work(
            doing, *(h.assign.remote(ranks, n, address, port) for n, h in enumerate(handles) if n)
        )

    async def _load(self) -> None:
        args = self.args
        if self.states:
            args = copy.deepcopy(args)
            args.ckpt.load_enable = False  # the state is newer than any checkpoint
        try:
            await self.await_work("was loaded", *self.load_models(args))
        except RayTaskError as error:
            raise not_started(self.policy, args.actor.model_name_or_path, error) from error
        loads = [
            h.set_state.remote(*s)
            for kind, states in self.states.items()
            for h, s in zip(self._in(kind), states, strict=True)
        ]
        await self.await_work("was given its state", *loads)

    def _empty(self) -> None:
        """End the processes; others may come in their place."""
        self._kill()
        for group in self.groups.values():
            group._actor_handlers = []
        self.where = []

    def _in(self, kind: str) -> list[Any]:
        handles: list[Any] = self.groups[kind]._actor_handlers
        return handles

    def leave(self) -> None:
        """Begins to leave the seats."""
        self._leaving = asyncio.create_task(self._leave())

    async def left(self) -> None:
        """Waits until seats that the policy had to leave are free."""
        if self._leaving is not None:
            await asyncio.shield(self._leaving)

    async def _leave(self) -> None:
        async with self._changing:
            if not any(self.handles()):
                return
            if self._weights is None:
                self._weights = await super().weights()
            states: dict[str, list[Any]] = {}
            for kind in self.groups:
                asked = [all_streamed(handle.get_state.remote()) for handle in self._in(kind)]
                doing = "was asked for its state"
                states[kind] = await self.await_work(doing, asyncio.gather(*asked))
            self.states, places = states, self.where
            self._empty()
            if not self.on_cpu:  # a device's memory is free when the process has gone
                await in_daemon_thread(lambda: [place.end() for place in places])

    async def fit(self, step: int) -> dict[str, Any]:
        """See `TrainingProcesses.fit`."""
        self._weights = None
        return await super().fit(step)

    async def weights(self) -> list[Any]:
        """See `TrainingProcesses.weights`; of a policy without processes those that it had."""
        if self._weights is None:
            async with self.active():
                self._weights = await super().weights()
        return self._weights

    def end(self) -> None:
        """Ends all processes at once and forgets their state."""
        super().end()
        self.states, self._weights, self._leaving = {}, None, None
        self.room.seats.leave(self.policy)
