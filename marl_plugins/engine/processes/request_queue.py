"""The queue of requests that wait for an engine: who is next."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

from marl_plugins.core.deadlines import not_counted
from marl_plugins.core.roles import Call
from marl_plugins.core.trajectory import path_order

Choose = Callable[[list[Any]], Any]
"""Picks one of some engines (`EngineProcess`)."""
Order = tuple[int, int, tuple[str, int]]


class RequestQueue:
    """Requests that wait for one of several engines.

    An engine has at most `in_flight` requests. The others wait here, and the oldest task's are the
    first to be answered: its trajectories end while younger ones have not begun, instead of all
    together at the end.

    Args:
        in_flight: Maximum number of requests at one engine.
    """

    def __init__(self, engines: list[Any], in_flight: int):
        self.engines = engines
        self.in_flight = in_flight
        self.waiting = 0
        """Requests that wait for an engine."""
        self.watchers: list[Callable[[], None]] = []
        """Called when a request begins to wait, when an engine has nothing to do, and when one has
        come."""
        self._queue: list[tuple[Order, int, Choose, asyncio.Future[Any]]] = []
        """A heap. Requests that were given up stay in it until it is their turn."""
        self._numbers = itertools.count()

    def order(self, call: Call) -> Order:
        """Returns the key that sorts the requests that wait: the task's place, then sample and
        path."""
        return call.place, call.sample, path_order(call.path)

    def refusal(self) -> BaseException | None:
        """Returns why no request will ever be answered, as an exception for one of them; None as
        long as one may be."""
        return None

    async def take_place(self, call: Call, choose: Choose) -> Any:
        """Waits for an engine with a free place, which is taken."""
        if not self.waiting and (free := self._free()):  # nobody is before it
            engine = choose(free)
            engine.load += 1
            return engine
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._queue, (self.order(call), next(self._numbers), choose, future))
        self.waiting += 1
        self.hand_out()
        self.tell()
        try:
            async with not_counted():
                return await future
        except asyncio.CancelledError:
            if future.cancelled():
                self.waiting -= 1
            elif (
                future.exception() is None
            ):  # given up in the moment in which it was given an engine
                self.free_place(future.result())
            raise

    def free_place(self, engine: Any) -> None:
        """Notes that an engine has one request less."""
        engine.load -= 1
        if not engine.load and engine.drained is not None and not engine.drained.done():
            engine.drained.set_result(None)
        self.hand_out()
        if not engine.load:
            self.tell()

    def _free(self) -> list[Any]:
        return [engine for engine in self.engines if engine.load < self.in_flight]

    def hand_out(self) -> None:
        """Gives free places to those that wait, the oldest task's first; refuses all where none
        will ever be free."""
        while self._queue and (refusal := self.refusal()) is not None:
            *_, future = heapq.heappop(self._queue)
            if not future.done():
                self.waiting -= 1
                future.set_exception(refusal)
        while self._queue and (free := self._free()):
            *_, choose, future = heapq.heappop(self._queue)
            if future.done():  # given up
                continue
            self.waiting -= 1
            try:
                engine = choose(free)
            except (
                Exception
            ) as error:  # a plugin's: it belongs to the request, not to whoever has freed the place
                future.set_exception(error)
            else:
                engine.load += 1
                future.set_result(engine)

    def tell(self) -> None:
        """Calls the watchers."""
        for watcher in self.watchers:
            watcher()
