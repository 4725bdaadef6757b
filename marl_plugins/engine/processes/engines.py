"""The vLLM engines of one policy, or of several that share them, seen from the controller:
requests, who waits, and what happens when an engine dies or goes to another policy."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import ray
from ray.exceptions import RayActorError, RayTaskError

from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.process_backend import EngineKind
from marl_plugins.core.roles import Call
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.signature import differences
from marl_plugins.engine.processes.deaths import DEATHS
from marl_plugins.engine.processes.mailbox import Mailbox
from marl_plugins.engine.processes.placement import EnginePlace, ready, strategy
from marl_plugins.engine.processes.request_queue import Choose, RequestQueue
from marl_plugins.engine.processes.watchdog import ProcessPlace, Watchdog, locate

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.placement_group import PlacementGroup
    from vllm import SamplingParams

_STARTING = threading.Lock()

Restore = Callable[["ActorHandle"], Awaitable[None]]


class EngineProcess:
    """One engine process: its actor handle, its placement group, and the number of requests in
    flight.

    Args:
        handle: Ray's.
        groups: The placement groups that are its own.
        shared: The place that it shares with training processes, if it does.
        number: Its number among those that share it.
    """

    def __init__(
        self,
        handle: ActorHandle,
        groups: Sequence[PlacementGroup],
        shared: EnginePlace | None = None,
        number: int = 0,
    ):
        self.handle, self.mailbox = handle, Mailbox(handle)
        self.groups, self.shared, self.number = groups, shared, number
        self.load = 0
        self.drained: asyncio.Future[None] | None = None
        """Set once it has answered everything, where somebody waits for that."""
        self.home: EnginePool | None = None
        """The pool that it was started for, once it has left it."""
        self.where: ProcessPlace | None = None
        """Where its process runs, once it is known."""
        self.watchdog = Watchdog(self._end_silent)
        self.silent = ""
        """The process and its state when the watchdog ended it."""

    async def answer(self, call: Call, silence: float) -> Generation:
        """Returns the answer to a request.

        Args:
            silence: Seconds after which the engine is ended if it has answered nothing.
        """
        with self.watchdog.asked(silence):
            ids, logprobs, finish, changes, policy, version = await self.mailbox.ask(
                list(call.context_ids), sampling_params(call), call.policy
            )
        return Generation(tuple(ids), tuple(logprobs), finish, policy, version, changes)

    def _end_silent(self) -> None:
        self.silent = str(self.where or "its process")
        self.kill()
        if self.where is not None:
            self.where.kill()

    def kill(self) -> None:
        """Ends the process, if it still runs, and gives its devices back."""
        with contextlib.suppress(RayActorError):
            ray.kill(self.handle)
        for group in self.groups:
            ray.util.remove_placement_group(group)


class RestartBudget:
    """Number of dead engines that a run may still replace."""

    def __init__(self, restarts: int):
        self.left = restarts


class EnginePool(RequestQueue):
    """The engines of a policy, and the requests that wait for one.

    Several policies may share a pool (`serve`), where an engine answers for each of them with its
    own weights. Everything that
    concerns engines is there once: restarts, remarks, places.

    An engine may be lent to the pool of another policy. All the while it belongs to one of the two:
    it is in `engines`, or it is
    `travelling` and waited for by the pool that it goes to.

    Args:
        policy: Its name; of several the first one's.
        start: Starts an engine in the place of a dead one (blocking, called in a thread).
        restore: Gives a new engine, by its handle, the policy's current weights.
        budget: Shared by all pools of the run.
        silence: Seconds after which an engine that has been asked and has answered nothing is
            ended.
        in_flight: Maximum number of requests at one engine.
    """

    def __init__(
        self,
        policy: str,
        engines: list[EngineProcess],
        start: Callable[[EngineProcess], EngineProcess],
        restore: Restore,
        budget: RestartBudget,
        silence: float,
        in_flight: int,
    ):
        super().__init__(engines, in_flight)
        self.engines: list[EngineProcess] = engines
        self.policy = policy
        self.start = start
        self.budget = budget
        self.silence = silence
        self.versions: dict[str, tuple[int, ...]] = {}
        """By policy, whose answers are taken: one, and while its weights change the new one too."""
        self._given: dict[str, list[int]] = {}
        """By policy, the versions that the engines have been given, in their order."""
        self._restores: dict[str, Restore] = {}
        self.serve(policy, restore)
        self.signature: Mapping[str, object] = {}
        """What an engine must have in common with this pool's in order to come here; see
        engine/plan/signature.py."""
        self.travelling: set[EngineProcess] = set()
        """Engines on their way to this pool."""
        self.away: dict[EngineProcess, EnginePool] = {}
        """Engines of this pool that are lent, and where they are or go; those on their way home
        too."""
        self.asleep = False
        """Whether the engines are to sleep, those that replace dead ones too."""
        self.paused = False
        """Whether the engines are to write no further, those that replace dead ones too."""
        self.restarted = 0
        self.remarks: list[str] = []
        """What the console has to say of engines that were replaced."""
        self._coming: dict[EngineProcess, asyncio.Task[None]] = {}
        """Engines on their way: the one that replaces a dead one, by the latter, and one that
        travels, by itself."""
        self._broken: BaseException | None = None
        """Why a dead engine could not be replaced, where that ends the run."""

    @property
    def handles(self) -> list[ActorHandle]:
        return [engine.handle for engine in self.engines]

    @property
    def _awaited(self) -> list[asyncio.Task[None]]:
        return [task for task in self._coming.values() if not task.done()]

    def serve(self, policy: str, restore: Restore) -> None:
        """Answers for a policy too.

        Args:
            restore: Gives a new engine, by its handle, that policy's current weights.
        """
        self.versions[policy], self._restores[policy], self._given[policy] = (0,), restore, []

    async def restore(self, handle: ActorHandle) -> None:
        """Gives a new engine the current weights of every policy that it answers for."""
        for restore in self._restores.values():
            await restore(handle)

    @contextlib.contextmanager
    def changing(self, policy: str, version: int) -> Iterator[None]:
        """Accepts answers of either weights of a policy while the engines are given those of a
        version."""
        self.versions[policy] = (*self.versions[policy], version)
        self._given[policy].append(version)
        yield
        self.versions[policy] = (version,)

    def since(self, policy: str) -> Callable[[], list[int]]:
        """Returns what gives the versions by which an answer may be that is asked for now, once it
        is there."""
        before, later = self.versions[policy], self._given[policy]
        count = len(later)
        return lambda: [*before, *later[count:]]

    async def generate(self, call: Call, choose: Choose) -> Generation:
        """Answers a request by the engine that `choose` picks of those with a free place; by
        another one if that one dies.

        Raises:
            InfrastructureFailure: No engine is left and none may be started.
            RunEnded: The answer is not by the policy's current weights.
        """
        while True:
            if self._broken is not None:
                raise self._broken
            engine: EngineProcess = await self.take_place(call, choose)
            possible = self.since(call.policy)
            try:
                answer = await engine.answer(call, self.silence)
            except (*DEATHS, RayTaskError) as error:
                if not is_dead(error, engine):
                    raise
                self._bury(engine)  # the request waits again, in its place
            else:
                if is_current(answer, call.policy, possible()):
                    return answer
            finally:
                self.free_place(engine)

    def refusal(self) -> BaseException | None:
        """See `RequestQueue.refusal`."""
        if self._broken is not None:
            return self._broken
        if self.engines or self.away or self._awaited:
            return None
        return InfrastructureFailure(
            "engine", f"policy {self.policy!r} has no engine left (limits.engine_restarts)"
        )

    async def on_all(self, request: Callable[[ActorHandle], ObjectRef]) -> None:
        """Makes a request of every engine (`request(handle)` gives an object reference); dead ones
        are replaced.

        Engines that are on their way here are waited for, because they may have been given weights
        that are no longer current. One that replaces an engine which dies here has the policy's
        current weights, whatever was asked for.
        """

        async def one(engine: EngineProcess) -> None:
            try:
                with engine.watchdog.asked(self.silence):
                    await request(engine.handle)
            except (*DEATHS, RayTaskError) as error:
                if not is_dead(error, engine):
                    raise
                await self.replace(engine)

        await asyncio.gather(*map(asyncio.shield, self._awaited))
        if self._broken is not None:
            raise self._broken
        await asyncio.gather(*[one(engine) for engine in list(self.engines)])
        if not self.engines:
            raise RunEnded(f"policy {self.policy!r} has no engine left (limits.engine_restarts)")

    async def pause(self) -> None:
        """Lets the engines write no further, until `resume`; what was being written stays with
        them."""
        self.paused = True
        await self.on_all(lambda handle: handle.pause_generation.remote())

    async def resume(self) -> None:
        """Lets the engines go on, by the weights that they hold now."""
        self.paused = False
        await self.on_all(lambda handle: handle.resume_generation.remote())

    async def replace(self, engine: EngineProcess) -> None:
        """Replaces a dead engine, once, however many requests found it dead, and whichever of them
        is given up meanwhile."""
        self._bury(engine)
        await asyncio.shield(self._coming[engine])

    def _bury(self, engine: EngineProcess) -> None:
        """Begins to replace a dead engine, once."""
        if engine in self._coming:
            return
        if engine in self.engines:  # else it was about to leave
            self.engines.remove(engine)
        self._expect(engine, start_replacement(self, engine))

    def _expect(
        self, engine: EngineProcess, coming: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        task = self._coming[engine] = asyncio.create_task(coming)
        task.add_done_callback(self._arrived)
        return task

    def _arrived(self, coming: asyncio.Task[None]) -> None:
        """Sends whoever waits to the new engine, or tells them that there is none."""
        error = None if coming.cancelled() else coming.exception()
        if error is not None:
            self._broken = error
        self.recall()
        self.hand_out()
        self.tell()

    def recall(self) -> None:
        """Gets a lent engine back where none is left here and none is coming: else requests would
        wait for ever."""
        if self.engines or self._awaited:
            return
        for engine, pool in self.away.items():
            if engine in pool.engines:
                pool.lend(engine, self)
                return

    def lend(self, engine: EngineProcess, to: EnginePool) -> asyncio.Task[None]:
        """Begins to give an engine to another policy's pool: from now on it is asked for nothing
        here; once it has answered what it was asked it takes over the other policy's weights. If it
        dies meanwhile it is replaced, here or there.

        Raises:
            ValueError: An engine of this pool cannot take over the other policy's weights.
        """
        if differing := differences(self.signature, to.signature):
            raise ValueError(
                f"engines of policies {self.policy!r} and {to.policy!r} differ: "
                f"{', '.join(differing)}"
            )
        self.engines.remove(engine)
        engine.home = engine.home or self
        engine.home.away[engine] = to
        to.travelling.add(engine)
        return to._expect(engine, travel(engine, self, to))

    def kill(self) -> None:
        """Ends all engines at once, those on their way here included."""
        for engine in (*self.engines, *self.travelling):
            engine.kill()
        self.engines, self.travelling = [], set()


async def travel(engine: EngineProcess, giver: EnginePool, taker: EnginePool) -> None:
    """Brings an engine that has left one pool into another one."""
    if engine.load:
        engine.drained = asyncio.get_running_loop().create_future()
        await engine.drained
        engine.drained = None
    if engine not in giver._coming:  # else it has died before it could leave, and is replaced there
        try:
            with engine.watchdog.asked(taker.silence):
                await taker.restore(engine.handle)
        except (*DEATHS, RayTaskError) as error:
            if not is_dead(error, engine):
                raise
            taker.travelling.remove(engine)
            await start_replacement(taker, engine)
        else:
            taker.engines.append(engine)
            taker.hand_out()
            if engine.home is taker:
                del taker.away[engine]
            elif engine.home is not None:
                engine.home.recall()
    taker.travelling.discard(engine)
    del taker._coming[engine]


async def start_replacement(pool: EnginePool, engine: EngineProcess) -> None:
    """Replaces an engine that has died in a pool; the new one has the same home and the same
    devices, and sleeps or pauses where the others do."""
    reason, home = "died", engine.home or pool
    if engine.silent:
        reason = (
            f"answered nothing for {pool.silence:g} s (limits.silence_seconds; {engine.silent})"
        )
    engine.kill()
    if engine.where is not None:
        await in_daemon_thread(engine.where.end)
    while pool.budget.left > 0:
        pool.budget.left -= 1
        replacement = await in_daemon_thread(pool.start, engine)
        try:
            with replacement.watchdog.asked(pool.silence):
                replacement.where = await locate(replacement.handle)
                await pool.restore(replacement.handle)
                if pool.asleep:
                    await replacement.handle.sleep.remote()
                if pool.paused:
                    await replacement.handle.pause_generation.remote()
        except (*DEATHS, RayTaskError) as error:
            replacement.kill()
            if not is_dead(error, replacement):
                raise
        else:
            pool.restarted += 1
            pool.remarks.append(
                f"an engine of policy {pool.policy!r} {reason} and was replaced; "
                f"{pool.budget.left} more may be "
                "(limits.engine_restarts)"
            )
            home.away.pop(engine, None)
            pool.engines.append(replacement)
            pool.hand_out()
            if home is not pool:
                replacement.home = home
                home.away[replacement] = pool
                home.recall()
            return
    home.away.pop(engine, None)
    if home is not pool:
        home.recall()  # another one, if there is one
        home.hand_out()  # else whoever waits there is told that none will come


def is_current(answer: Generation, policy: str, possible: Sequence[int]) -> bool:
    """Returns whether each token of an answer is by weights that its policy had meanwhile. It is
    not where they changed and the
    engine has not noted where: it is asked for again.

    Args:
        possible: The versions from the request to the answer, in their order; more than one where
            they changed.

    Raises:
        RunEnded: It is by weights of another policy or version.
    """
    if answer.policy == policy and {
        answer.version,
        *(version for _, version in answer.changes),
    } <= set(possible):
        return True
    if answer.policy == policy and answer.version == -1 and len(possible) > 1:
        return False
    raise RunEnded(
        f"an engine answered with weights of policy {answer.policy!r}, version {answer.newest}, "
        f"where policy {policy!r}, version "
        f"{possible[-1]}, was asked; the run's engines and policies are out of step"
    )


def is_dead(error: Exception, engine: EngineProcess) -> bool:
    """Returns whether an error means that the engine is gone: its actor, or vLLM's own process
    behind an actor that still runs.

    Not when another process has died, of which the engine awaited something.
    """
    if isinstance(error, DEATHS):
        return getattr(error, "actor_id", None) in (None, engine.handle._actor_id.hex())
    return type(getattr(error, "cause", None)).__name__ == "EngineDeadError"


def sampling_params(call: Call) -> SamplingParams:
    """Returns vLLM's parameters of one request, never shared between requests (upstream's executors
    mutate them)."""
    from vllm import SamplingParams

    s = call.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        max_tokens=call.max_tokens,
        min_tokens=1,
        seed=call.seed,
        stop=list(s.stop) or None,
        stop_token_ids=list(s.stop_ids) or None,
        detokenize=bool(s.stop),
        skip_special_tokens=False,
        logprobs=0,
    )


def start_engine(
    args: SimpleNamespace,
    place: EnginePlace | None,
    number: int,
    seconds: float,
    kind: EngineKind | None,
    node: str = "",
) -> EngineProcess:
    """Starts an engine through upstream's own function, with our actor class in the place of
    upstream's: of those that share a placement group the one with this number, which says its
    devices; each other one has a group of its own, so that a dead engine's devices can be given
    back without ending the others.

    Engines that are to sleep do not yet: upstream waits for that (vllm_engine.py:308), which takes
    a minute or two on a GPU, and other policies' engines can start meanwhile (`start` in
    engine/runtime/policy.py).

    Args:
        seconds: How long its devices may take to be free.
        kind: What it is; None: `RolloutActor`.
        node: Ray's id of the one that it is to be on, if any.

    Raises:
        RunEnded: They were not free in time.
    """
    import openrlhf.trainer.ray.vllm_engine as upstream

    from marl_plugins.engine.processes.engine_actor import RemoteRolloutActor

    kind = kind or EngineKind(RemoteRolloutActor)
    groups: list[PlacementGroup] = []
    count = number + 1 if place else 1
    if place:
        kind = replace(kind, arguments={**kind.arguments, "num_gpus": place.share})
    left_out = [SimpleNamespace(remote=lambda **arguments: None)] * (count - 1)

    def options(**options: Any) -> SimpleNamespace:
        if place and options["num_gpus"]:  # else its workers have the devices
            options |= {"num_cpus": place.share, "num_gpus": place.share}
        return left_out.pop() if left_out else kind.options(**options)

    def placement_group(*arguments: Any, **options: Any) -> PlacementGroup:
        group = ray.util.placement_group(*arguments, **{**options, **strategy(node)})
        groups.append(ready(group, seconds))
        return groups[-1]

    substituted = patch.multiple(
        upstream,
        RolloutRayActor=SimpleNamespace(options=options),
        placement_group=placement_group,
        batch_vllm_engine_call=lambda *arguments, **options: None,
    )
    # One at a time: two dead engines may be replaced at once, and the substitution holds for the
    # whole process.
    with _STARTING, substituted:
        *_, handle = upstream.create_vllm_engines(
            count,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            args.vllm.enable_prefix_caching,
            args.vllm.enforce_eager,
            args.data.max_len,
            place and place.group,
            args.vllm.gpu_memory_utilization,
            args.vllm.enable_sleep,
            "processed_logprobs",
        )
    return EngineProcess(handle, groups, place, number)
