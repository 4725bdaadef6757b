"""The vLLM engines of one policy, seen from the controller: requests, who waits, and what happens when an engine dies."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from marl_plugins.core.failures import InfrastructureFailure, RunEnded
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import Call
from marl_plugins.runtime.watchdog import Process, Watchdog, locate

_STARTING = threading.Lock()

Choose = Callable[[list["Engine"]], "Engine"]
Restore = Callable[[Any], Awaitable[None]]


class Engine:
    """One engine process: its actor handle, its placement group, and the number of requests in flight."""

    def __init__(self, handle: Any, groups: list[Any]):
        self.handle = handle
        self.groups = groups
        self.load = 0
        self.where: Process | None = None
        """Where its process runs, once it is known."""
        self.watchdog = Watchdog(self._end_silent)
        self.silent = ""
        """The process and its state when the watchdog ended it."""

    async def answer(self, call: Call, silence: float) -> Generation:
        """The answer to a request.

        Args:
            silence: Seconds after which the engine is ended if it has answered nothing.
        """
        answer = self.handle.sample.remote(list(call.context_ids), sampling_params(call))
        try:
            with self.watchdog.asked(silence):
                ids, logprobs, finish, policy, version = await answer
        except asyncio.CancelledError:  # the trajectory was given up; the engine stops sampling for it
            ray.cancel(answer)
            raise
        return Generation(tuple(ids), tuple(logprobs), finish, policy, version)

    def _end_silent(self) -> None:
        self.silent = str(self.where or "its process")
        self.kill()
        if self.where is not None:
            self.where.kill()

    def kill(self) -> None:
        """End the process, if it still runs, and give its devices back."""
        with contextlib.suppress(RayActorError):
            ray.kill(self.handle)
        for group in self.groups:
            ray.util.remove_placement_group(group)


class RestartBudget:
    """Number of dead engines that a run may still replace."""

    def __init__(self, restarts: int):
        self.left = restarts


class EnginePool:
    """The engines of one policy, and the requests that wait for one.

    An engine has at most `in_flight` requests. The others wait here, and the oldest task's are the first to be answered: its
    trajectories end while younger ones have not begun, instead of all together at the end.

    Args:
        policy: Its name.
        start: Starts one more engine (blocking, called in a thread), to replace a dead one; None where that is impossible and
            a dead engine ends the run.
        restore: Gives a new engine, by its handle, the policy's current weights.
        budget: Shared by all pools of the run.
        silence: Seconds after which an engine that has been asked and has answered nothing is ended.
        in_flight: Maximum number of requests at one engine.
    """

    def __init__(
        self,
        policy: str,
        engines: list[Engine],
        start: Callable[[], Engine] | None,
        restore: Restore,
        budget: RestartBudget,
        silence: float,
        in_flight: int,
    ):
        self.policy = policy
        self.engines = engines
        self.start = start
        self.restore = restore
        self.budget = budget
        self.silence = silence
        self.in_flight = in_flight
        self.waiting = 0
        """Requests that wait for an engine."""
        self.restarted = 0
        self.remarks: list[str] = []
        """What the console has to say of engines that were replaced."""
        self._queue: list[tuple[Any, int, Choose, asyncio.Future[Engine]]] = []
        """A heap. Requests that were given up stay in it until it is their turn."""
        self._numbers = itertools.count()
        self._replacements: dict[Engine, asyncio.Task[None]] = {}
        self._broken: BaseException | None = None
        """Why a dead engine could not be replaced, where that ends the run."""

    @property
    def handles(self) -> list[Any]:
        return [engine.handle for engine in self.engines]

    def order(self, call: Call) -> Any:
        """What sorts the requests that wait: the task's place, then sample and path."""
        return call.place, call.sample, call.path

    async def generate(self, call: Call, choose: Choose) -> Generation:
        """Answer a request by the engine that `choose` picks of those with a free place; by another one if that one dies.

        Raises:
            InfrastructureFailure: No engine is left and none may be started.
        """
        while True:
            engine = await self._free_engine(call, choose)
            try:
                return await engine.answer(call, self.silence)
            except (RayActorError, RayTaskError) as error:
                if not is_dead(error, engine):
                    raise
                self._bury(engine)  # the request waits again, in its place
            finally:
                engine.load -= 1
                self._hand_out()

    async def _free_engine(self, call: Call, choose: Choose) -> Engine:
        """Wait for an engine with a free place, which is taken."""
        if self._broken is not None:
            raise self._broken
        if not self.waiting and (free := self._free()):  # nobody is before it
            engine = choose(free)
            engine.load += 1
            return engine
        given: asyncio.Future[Engine] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (self.order(call), next(self._numbers), choose, given))
        self.waiting += 1
        self._hand_out()
        try:
            return await given
        except asyncio.CancelledError:
            if given.cancelled():
                self.waiting -= 1
            elif given.exception() is None:  # given up in the moment in which it was given an engine
                given.result().load -= 1
                self._hand_out()
            raise

    def _free(self) -> list[Engine]:
        return [engine for engine in self.engines if engine.load < self.in_flight]

    def _hand_out(self) -> None:
        """Give free places to those that wait, the oldest task's first; refuse all where no engine is left."""
        while self._queue and (free := self._free()):
            *_, choose, given = heapq.heappop(self._queue)
            if given.done():  # given up
                continue
            self.waiting -= 1
            try:
                engine = choose(free)
            except Exception as error:  # a plugin's: it belongs to the request, not to whoever has freed the place
                given.set_exception(error)
            else:
                engine.load += 1
                given.set_result(engine)
        if self._queue and not self.engines and all(task.done() for task in self._replacements.values()):
            failure = f"policy {self.policy!r} has no engine left (limits.engine_restarts)"
            self._refuse(lambda: InfrastructureFailure("engine", failure))

    def _refuse(self, error: Callable[[], BaseException]) -> None:
        """Raise an error in all requests that wait."""
        while self._queue:
            *_, given = heapq.heappop(self._queue)
            if not given.done():
                self.waiting -= 1
                given.set_exception(error())

    async def on_all(self, request: Callable[[Any], Any]) -> None:
        """Make a request of every engine (`request(handle)` gives an object reference); dead ones are replaced.

        Engines that are on their way are waited for, because they may have been given weights that are no longer current. One that
        replaces an engine which dies here has the policy's current weights, whatever was asked for.
        """

        async def one(engine: Engine) -> None:
            try:
                with engine.watchdog.asked(self.silence):
                    await request(engine.handle)
            except (RayActorError, RayTaskError) as error:
                if not is_dead(error, engine):
                    raise
                await self.replace(engine)

        await asyncio.gather(*[asyncio.shield(task) for task in self._replacements.values() if not task.done()])
        if self._broken is not None:
            raise self._broken
        await asyncio.gather(*[one(engine) for engine in list(self.engines)])
        if not self.engines:
            raise RunEnded(f"policy {self.policy!r} has no engine left (limits.engine_restarts)")

    async def replace(self, engine: Engine) -> None:
        """Replace a dead engine, once, however many requests found it dead, and whichever of them is given up meanwhile."""
        self._bury(engine)
        await asyncio.shield(self._replacements[engine])

    def _bury(self, engine: Engine) -> None:
        """Begin to replace a dead engine, once."""
        if engine in self._replacements:
            return
        if self.start is None:
            raise RunEnded(
                f"an engine of policy {self.policy!r} died; engines are not replaced in a running job on GPUs yet"
            )
        self.engines.remove(engine)
        self._replacements[engine] = asyncio.create_task(self._start_replacement(engine, self.start))
        self._replacements[engine].add_done_callback(self._replaced)

    def _replaced(self, replacement: asyncio.Task[None]) -> None:
        """Whoever waits goes to the new engine, or is told that there is none."""
        error = None if replacement.cancelled() else replacement.exception()
        if error is not None:
            self._broken = error
            self._refuse(lambda: error)
        self._hand_out()

    async def _start_replacement(self, engine: Engine, start: Callable[[], Engine]) -> None:
        reason = "died"
        if engine.silent:
            reason = f"answered nothing for {self.silence:g} s (limits.silence_seconds; {engine.silent})"
        engine.kill()
        while self.budget.left > 0:
            self.budget.left -= 1
            replacement = await in_daemon_thread(start)
            try:
                with replacement.watchdog.asked(self.silence):
                    await self.restore(replacement.handle)
                    replacement.where = await locate(replacement.handle)
            except (RayActorError, RayTaskError) as error:
                replacement.kill()
                if not is_dead(error, replacement):
                    raise
            else:
                self.restarted += 1
                self.remarks.append(
                    f"an engine of policy {self.policy!r} {reason} and was replaced; {self.budget.left} more may be "
                    "(limits.engine_restarts)"
                )
                self.engines.append(replacement)
                return


def is_dead(error: Exception, engine: Engine) -> bool:
    """Whether an error means that the engine is gone: its actor, or vLLM's own process behind it.

    Not when another process has died, of which the engine awaited something (a policy's weights).
    """
    if isinstance(error, RayActorError):
        return error.actor_id in (None, engine.handle._actor_id.hex())
    cause = getattr(error, "cause", None)
    return type(cause).__name__ == "EngineDeadError"


def sampling_params(call: Call) -> Any:
    """vLLM's parameters of one request, never shared between requests (upstream's executors mutate them)."""
    from vllm import SamplingParams

    s = call.sampling
    return SamplingParams(
        temperature=s.temperature,
        top_p=s.top_p,
        max_tokens=call.max_tokens,
        min_tokens=1,
        seed=call.seed,
        stop=list(s.stop) or None,
        detokenize=bool(s.stop),
        skip_special_tokens=False,
        logprobs=0,
    )


@contextlib.contextmanager
def substituted(module: Any, **names: Any) -> Iterator[None]:
    """Module attributes replaced for the length of a call; each use is a row of the seam table."""
    before = {name: getattr(module, name) for name in names}
    for name, value in names.items():
        setattr(module, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)


def start_engines(args: Any, shared_group: Any) -> list[Engine]:
    """All engines of a policy: in the placement group of its training processes, or each in one of its own.

    One each, so that a dead engine's devices can be given back without ending the others.
    """
    if shared_group is not None:
        return _start(args, args.vllm.num_engines, shared_group)
    return [engine for _ in range(args.vllm.num_engines) for engine in _start(args, 1, None)]


def start_engine(args: Any) -> Engine:
    """One more engine, in a placement group of its own."""
    return _start(args, 1, None)[0]


def _start(args: Any, count: int, shared_group: Any) -> list[Engine]:
    """Start engines through upstream's own function, with our actor class in the place of upstream's."""
    import openrlhf.trainer.ray.vllm_engine as upstream

    from marl_plugins.runtime.engine_actor import RemoteRolloutActor

    groups: list[Any] = []

    def placement_group(*arguments: Any, **options: Any) -> Any:
        groups.append(ray.util.placement_group(*arguments, **options))
        return groups[-1]

    # One at a time: two dead engines may be replaced at once, and the substitution holds for the whole process.
    with _STARTING, substituted(upstream, RolloutRayActor=RemoteRolloutActor, placement_group=placement_group):
        handles = upstream.create_vllm_engines(
            count,
            args.vllm.tensor_parallel_size,
            args.actor.model_name_or_path,
            args.train.seed,
            args.train.full_determinism_enable,
            args.vllm.enable_prefix_caching,
            args.vllm.enforce_eager,
            args.data.max_len,
            shared_group,
            args.vllm.gpu_memory_utilization,
            args.vllm.enable_sleep,
            "processed_logprobs",
        )
    return [Engine(handle, groups) for handle in handles]
