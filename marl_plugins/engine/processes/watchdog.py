"""The watchdog finds what neither answers nor dies: a process that is stopped, or a rank that waits
in a collective operation for ever.

A watchdog ends it. What follows is what follows any death: an engine is replaced, a policy's
processes end the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from marl_plugins.engine.processes.nodes import living_nodes

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


ASKED_SECONDS, GONE_SECONDS = 5.0, 30.0
"""Within which a process that was asked to end, or killed, is gone, and its children."""


class ProcessPlace(NamedTuple):
    """The place where a process runs."""

    host: str
    """Its name, for messages alone."""
    pid: int
    node: str
    """Ray's id of the host."""
    family: tuple[tuple[int, float], ...] = ()
    """It and the processes that it has started, or those have, as vLLM's own: their ids, and when
    they began, because an id may soon be another process's."""

    def kill(self) -> None:
        """Ends it by SIGKILL. `ray.kill` only asks, which a stopped process does not hear."""
        with contextlib.suppress(ProcessLookupError):
            self._there(os.kill, self.pid, signal.SIGKILL)

    def end(self) -> None:
        """Ends its family, which has been asked to (`ray.kill`), and waits for that: what they held
        of a device is free then."""
        waiting = self._there(_end, self.family)
        while waiting is not None and not ray.wait([waiting], timeout=1.0)[0]:
            # Until Ray has noticed that a node is gone it gives its devices to whoever asks.
            if self.node not in living_nodes():
                return

    def _there(self, function: Callable[..., None], *arguments: object) -> ObjectRef | None:
        """Calls a function on the host; the reference is to an answer that has yet to come."""
        if self._is_here():
            function(*arguments)
            return None
        there = NodeAffinitySchedulingStrategy(self.node, soft=False)
        task = ray.remote(num_cpus=0, scheduling_strategy=there)(function)
        reference: ObjectRef = task.remote(*arguments)
        return reference

    def _is_here(self) -> bool:
        """Returns whether it runs on this machine; two machines may have one name."""
        here: str = ray.get_runtime_context().get_node_id()
        return self.node == here

    def __str__(self) -> str:
        """Returns the place, with the process's state if it runs on this machine."""
        import psutil

        if not self._is_here():
            return f"process {self.pid} on {self.host}"
        try:
            state = psutil.Process(self.pid).status()
        except psutil.NoSuchProcess:
            state = "gone"
        return f"process {self.pid} on {self.host} ({state})"


def locate(handle: ActorHandle) -> ObjectRef:
    """Returns a reference to the `ProcessPlace` of a Ray actor."""
    return handle.__ray_call__.remote(lambda actor: _here())


def _here() -> ProcessPlace:
    import psutil

    me = psutil.Process()
    family = tuple((p.pid, p.create_time()) for p in [me, *me.children(recursive=True)])
    node = ray.get_runtime_context().get_node_id()
    return ProcessPlace(socket.gethostname(), me.pid, node, family)


def _end(family: Sequence[tuple[int, float]]) -> None:
    if not _gone(family, ASKED_SECONDS):  # Ray complains to the console of whom a signal ends
        for one in family:
            if _runs(*one):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(one[0], signal.SIGKILL)
        _gone(family, GONE_SECONDS)


def _gone(family: Sequence[tuple[int, float]], seconds: float) -> bool:
    """Waits for the end of processes; returns whether all have ended in time."""
    until = time.monotonic() + seconds
    while any(_runs(*one) for one in family):
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def _runs(pid: int, began: float) -> bool:
    import psutil

    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - began) < 1.0
        # With its first thread ended it looks dead, and has its memory until all have.
        dead = process.status() == psutil.STATUS_ZOMBIE and process.num_threads() <= 1
        return same and not dead
    except psutil.NoSuchProcess:
        return False


class Watchdog:
    """Ends something that has been asked and has answered nothing for too long.

    Args:
        end: Ends it, whatever it is doing.
    """

    def __init__(self, end: Callable[[], None]):
        self.end = end
        self._asked = 0
        self._waited = 0.0  # since the last answer, until somebody last gave up
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def asked(self, seconds: float) -> Iterator[None]:
        """Counts the time while an answer is awaited. A request that is given up (`CancelledError`)
        is no answer: whoever asks next continues to count.

        Args:
            seconds: Maximum time without any answer, while one is awaited.
        """
        loop = asyncio.get_running_loop()
        if not self._asked:
            self._since = loop.time()
            self._timer = loop.call_later(seconds - self._waited, self._check, loop, seconds)
        self._asked += 1
        waited = 0.0
        try:
            yield
        except asyncio.CancelledError:
            waited = self._waited + loop.time() - self._since
            raise
        finally:
            self._waited, self._since = waited, loop.time()
            self._asked -= 1
            if not self._asked and self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _check(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        left = seconds - self._waited - (loop.time() - self._since)
        if left > 0:
            self._timer = loop.call_later(left, self._check, loop, seconds)
            return
        self._timer = None
        self.end()
