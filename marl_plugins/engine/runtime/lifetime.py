"""The lifetime of a run, and what begins and ends with it, whatever ends it: signals, the plugins'
own services, the work in the event loop."""

from __future__ import annotations

import asyncio
import faulthandler
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.core.failures import RunPaused
from marl_plugins.core.hookspecs import Purpose
from marl_plugins.engine.hook_faults import no_exit
from marl_plugins.engine.plan.plan import Plan

if TYPE_CHECKING:
    from types import FrameType

    from marl_plugins.engine.runtime.session import Session

STDERR = 2
SILENT_SECONDS = 60
"""Longest time for which nothing else runs on the event loop before it is said what does."""
BEAT_SECONDS = 5
T = TypeVar("T")


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Makes SIGTERM (Slurm, Kubernetes) end a run like Ctrl-C does: by a `KeyboardInterrupt`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def plugins_started(loop: asyncio.Runner, plan: Plan, purpose: Purpose) -> Iterator[None]:
    """Calls `marl_start` before and `marl_stop` after, in the run's event loop."""
    part = plan.plugins.started(plan.run, purpose)
    loop.run(part.__aenter__())
    try:
        yield
    except BaseException as error:
        try:
            loop.run(part.__aexit__(type(error), error, error.__traceback__))
        except (
            BaseException
        ) as last:  # what ended the run is raised, also when a plugin cannot stop
            if last is not error:
                print(f"warning: while plugins were stopped: {last}", file=sys.stderr)
        raise
    else:
        loop.run(part.__aexit__(None, None, None))


def run_until_terminated(loop: asyncio.Runner, session: Session, work: Coroutine[Any, Any, T]) -> T:
    """Runs the session's work; whatever ends it early ends the session's processes too.

    Raises:
        KeyboardInterrupt: Ctrl-C, or SIGTERM.
        RunEnded: Code that runs by itself called `sys.exit`.
        RuntimeError: Something was cancelled that neither of them cancelled: a bug, for example of
            a workflow.
    """
    terminated = False
    main: asyncio.Task[object] | None = None

    async def supervised() -> T:
        nonlocal main
        main = task = asyncio.current_task()
        before = asyncio.all_tasks()
        assert task is not None

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        beating = asyncio.create_task(naming_what_holds_the_loop())
        with _on_sigterm(terminate):
            try:
                return await work
            except BaseException:
                # or a thread in `ppo_train` would stay in ray.get, and the loop could not be closed
                session.kill()
                raise
            finally:
                beating.cancel()
                left = asyncio.all_tasks() - before  # they end while Ray still runs
                for other in left:
                    other.cancel()
                await asyncio.gather(*left, return_exceptions=True)

    try:
        with no_exit():
            return loop.run(supervised())
    except RunPaused:
        while (
            main is not None and not main.done()
        ):  # a task that nobody guards has stopped the event loop; others may
            main.cancel()
            with suppress(SystemExit, asyncio.CancelledError):
                loop.get_loop().run_until_complete(main)
        raise
    except asyncio.CancelledError as error:  # Ctrl-C is a KeyboardInterrupt already
        if terminated:
            raise KeyboardInterrupt from None
        raise RuntimeError("something was cancelled in this run that nobody interrupted") from error


async def naming_what_holds_the_loop() -> None:
    """Makes faulthandler write the lines of all threads where the event loop stands still: a
    grader's regular expression that backtracks keeps even the interpreter to itself."""
    try:
        while True:
            faulthandler.dump_traceback_later(SILENT_SECONDS, file=STDERR)
            await asyncio.sleep(BEAT_SECONDS)
    finally:
        faulthandler.cancel_dump_traceback_later()


@contextmanager
def _on_sigterm(handler: Callable[[], None]) -> Iterator[None]:
    """SIGTERM calls `handler` in the running event loop, which does not restore the handler from
    before by itself."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop, before = asyncio.get_running_loop(), signal.getsignal(signal.SIGTERM)
    loop.add_signal_handler(signal.SIGTERM, handler)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)
        signal.signal(signal.SIGTERM, before)
