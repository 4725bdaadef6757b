"""Requests to an engine and its answers, many in one message.

What Ray asks of the controller for a call, a millisecond, does not depend on what is in it. So all
requests of one turn of the controller's event loop travel together, and so do all answers that are
there when the controller next asks for some.
"""

from __future__ import annotations

import asyncio
import itertools
import traceback
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError, RayTaskError

if TYPE_CHECKING:
    from ray.actor import ActorHandle

Answer = tuple[int, object, RayTaskError | None]
"""A request's number, what was returned, and what was raised."""

EVENT_LOOP_TURNS = 8
"""Of the engine's event loop, in which what vLLM has handed to a request reaches whoever reads its
answer: twice as many as it takes."""


class Mailbox:
    """The controller's end: sends requests to an engine, and hands its answers to whoever waits.

    Args:
        handle: The engine's actor, with a `Postbox`'s methods.
    """

    def __init__(self, handle: ActorHandle):
        self.handle = handle
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._unsent: dict[int, Sequence[object]] = {}
        self._given_up: list[int] = []
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, *request: object) -> Any:
        """Returns the answer to a request.

        Raises:
            RayTaskError: The engine raised an error, which this is an instance of too.
            RayError: The engine is gone.
        """
        loop = asyncio.get_running_loop()
        number, future = next(self._numbers), loop.create_future()
        self._send_soon()
        self._unsent[number], self._waiting[number] = request, future
        try:
            return await future
        except asyncio.CancelledError:  # the engine stops sampling for it
            self._waiting.pop(number, None)
            if self._unsent.pop(number, None) is None:
                self._send_soon()
                self._given_up.append(number)
            raise

    def _send_soon(self) -> None:
        """Sends, once all that is ready to run has run."""
        if not self._unsent and not self._given_up:
            asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        given_up, self._given_up = self._given_up, []
        unsent, self._unsent = self._unsent, {}
        if not given_up and not unsent:
            return
        self.handle.post.remote([*unsent.items()], given_up)
        if self._reader is None:
            self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._waiting:
                for number, answer, error in await self.handle.collect.remote():
                    future = self._waiting.pop(number, None)
                    if future is None or future.done():  # given up meanwhile
                        continue
                    if error is None:
                        future.set_result(answer)
                    else:
                        future.set_exception(error.as_instanceof_cause())
        except RayError as error:
            waiting, self._waiting = self._waiting, {}
            for future in waiting.values():
                if not future.done():
                    future.set_exception(error)
        finally:
            self._reader = None


class Postbox:
    """The engine's end: answers requests side by side.

    Args:
        answer: Answers one.
    """

    def __init__(self, answer: Callable[..., Awaitable[object]]):
        self.answer = answer
        self._answering: dict[int, asyncio.Task[None]] = {}
        self._answered: list[Answer] = []
        self._news = asyncio.Event()

    def post(self, requests: Iterable[tuple[int, Sequence[Any]]], given_up: Iterable[int]) -> None:
        """Begins to answer requests, and ends others that nobody waits for any longer."""
        for number, request in requests:
            task = self._answering[number] = asyncio.create_task(self._answer(number, request))
            task.add_done_callback(partial(self._answering.pop, number))
        for number in given_up:
            if number in self._answering:
                self._answering[number].cancel()
            self._news.set()  # nothing may be left to wait for

    async def _answer(self, number: int, request: Sequence[Any]) -> None:
        try:
            answer, raised = await self.answer(*request), None
        except Exception as error:
            answer, raised = None, RayTaskError("sample", traceback.format_exc(), error)
        self._answered.append((number, answer, raised))
        self._news.set()

    async def collect(self) -> list[Answer]:
        """Returns all answers that are there, once there is one."""
        await self._news.wait()
        for _ in range(EVENT_LOOP_TURNS):
            await asyncio.sleep(0)
        self._news.clear()
        answered, self._answered = self._answered, []
        return answered
