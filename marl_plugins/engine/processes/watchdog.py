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
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle


class ProcessPlace(NamedTuple):
    """The place where a process runs."""

    host: str
    pid: int
    node: str
    """Ray's id of the host."""

    def kill(self) -> None:
        """Ends it by SIGKILL. `ray.kill` only asks, which a stopped process does not hear."""
        if self.host == socket.gethostname():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        else:
            there = NodeAffinitySchedulingStrategy(self.node, soft=False)
            ray.remote(num_cpus=0, scheduling_strategy=there)(os.kill).remote(
                self.pid, signal.SIGKILL
            )

    def __str__(self) -> str:
        """Returns the place, with the process's state if it runs on this machine."""
        import psutil

        if self.host != socket.gethostname():
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
    return ProcessPlace(socket.gethostname(), os.getpid(), ray.get_runtime_context().get_node_id())


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
        try:
            yield
        except asyncio.CancelledError:
            self._waited += loop.time() - self._since
            raise
        except BaseException:
            self._waited = 0.0
            raise
        else:
            self._waited = 0.0
        finally:
            self._since = loop.time()
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
