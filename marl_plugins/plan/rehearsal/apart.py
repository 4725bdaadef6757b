"""User code that is tried before anything starts: in a thread that can be left behind, and what it raises by file and line."""

from __future__ import annotations

import asyncio
import gc
import linecache
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_plugins.core import workflow
from marl_plugins.core.failures import leaves_of
from marl_plugins.core.fields import Miscalled
from marl_plugins.core.roles import NotInRecipe
from marl_plugins.core.trajectory import Action
from marl_plugins.loading import line_of, text_of, users_line

T = TypeVar("T")
Caught = list[warnings.WarningMessage]
NEVER_AWAITED = "was never awaited"
SECONDS = 10.0
"""User code that takes longer is left behind."""
TICK = 0.1


@dataclass(frozen=True)
class Failure:
    """What user code raised.

    Args:
        place: File and line.
        kind: Name of the exception's type; empty where the text says everything.
        certain: Whether no answer of an agent changes it.
        raised: Whether a line of the user's raised it; else what the user's code returned is at fault.
        outside: Whether the network or a service raised it, which may be there when the run starts.
    """

    place: str
    kind: str
    text: str
    certain: bool = False
    raised: bool = True
    outside: bool = False

    def __str__(self) -> str:
        return ": ".join(filter(None, [self.place, self.kind, self.text]))


class Stuck(Exception):
    """User code did not end in time.

    Args:
        place: Where it is, None where no line of the user's is being executed.
    """

    def __init__(self, place: str | None):
        self.place = place
        super().__init__(place)

    def problem(self, what: str, where: str) -> str:
        """The problem for the user; `where` is named where nothing else is known."""
        return (
            f"{self.place or where}: {what} was still here after {SECONDS:g} s: it blocks or never ends; wait with `await` "
            "(asyncio.sleep, asyncio.to_thread), and bound loops"
        )


def run_apart(work: Callable[[Caught], T]) -> T:
    """Run `work` in a thread of its own: nothing else stops code that blocks, and a notebook has an event loop already.

    Args:
        work: Is given the list to which Python's warnings are added, of which some are mistakes.

    Raises:
        Stuck: It was not done after `SECONDS`.
    """
    results: list[T] = []
    raised: list[BaseException] = []

    def body() -> None:
        sys.set_coroutine_origin_tracking_depth(2)
        try:
            results.append(work(caught))
        except BaseException as error:  # raised again below, in the caller's thread
            raised.append(error)

    thread = threading.Thread(target=body, daemon=True, name="rehearsal")
    with warnings.catch_warnings(record=True) as caught:  # here, so that they are put back when the thread is left behind
        warnings.simplefilter("always", RuntimeWarning)
        thread.start()
        for _ in range(round(SECONDS / TICK)):  # while the whole machine stands still, one tick passes
            thread.join(TICK)
    for warning in caught:
        if NEVER_AWAITED not in str(warning.message):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if thread.is_alive():
        place = line_of(thread)
        _ask_to_end(thread)
        raise Stuck(place)
    if raised:
        raise raised[0]
    return results[0]


class LeftBehind(SystemExit):
    """Raised in a thread that nobody waits for any more; not the user's."""


def _ask_to_end(thread: threading.Thread) -> None:
    """Raise `LeftBehind` in a thread as soon as it executes Python again, so that a busy loop does not go on for ever."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(LeftBehind))


def run_on_a_loop(main: Coroutine[Any, Any, T]) -> T:
    """Like `asyncio.run`, but silent about what user code leaves running, and without waiting for its threads."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)
    try:
        return loop.run_until_complete(main)
    finally:
        if left := asyncio.all_tasks(loop):
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.wait(left, timeout=0.1))
        loop.close()


@contextmanager
def failures_kept(failures: list[Failure], where: str, caught: Caught) -> Iterator[None]:
    """Keep what user code raises inside as failures, or else the coroutines that it has not awaited.

    Args:
        where: Named where no line of the user's took part.
        caught: Of `run_apart`.
    """
    before = len(caught)
    try:
        yield
    except LeftBehind:
        raise
    except BaseException as error:  # user code's, which may derive its own from `BaseException`
        failures += [failure_of(leaf, where) for leaf in leaves_of(error)]
    if failures:
        gc.collect()  # the frames of a traceback keep coroutines, of which Python would complain later
    else:
        failures += [_forgotten(w.source, where) for w in caught[before:] if NEVER_AWAITED in str(w.message)]


def _forgotten(coroutine: Any, where: str) -> Failure:
    origin = [frame for frame in getattr(coroutine, "cr_origin", None) or () if frame[0] != workflow.__file__]
    place = f"{origin[0][0]}:{origin[0][1]}" if origin else where
    name = getattr(coroutine, "__qualname__", "a coroutine")
    return Failure(place, "", f"{name} is called, and nobody awaits it; write `await` before it", certain=True)


def failure_of(error: BaseException, where: str) -> Failure:
    """What was raised, and where; `where` is for what no line of the user's took part in."""
    if isinstance(error, Miscalled):
        return Failure(error.place or where, "", error.problem, certain=True)
    line = users_line(error, ())
    place = line or where
    if isinstance(error, NotInRecipe):
        return Failure(place, "", str(error), certain=True)
    if isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"{error!r} ends the program; raise an exception that says what is wrong"
        return Failure(place, "", text, certain=True)
    return Failure(
        place,
        type(error).__name__,
        f"{text_of(error)}{_hint(error, place)}",
        raised=line is not None,
        outside=_of_the_network(error),
    )


def _hint(error: BaseException, place: str) -> str:
    """What the exception itself does not say, to end its text with."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Action):
        return "; an action's text is `action.text`"
    file, _, number = place.rpartition(":")
    if isinstance(error, KeyError) and ".metadata[" in linecache.getline(file, int(number) if number.isdigit() else 0):
        return "; the task has no such metadata: every field of the data but prompt and label is in it"
    return ""


def _of_the_network(error: BaseException) -> bool:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ConnectionError | TimeoutError | socket.gaierror):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


def sort_out(tries: Sequence[tuple[str, Sequence[Failure]]], what: str, *, sure: bool) -> tuple[list[str], list[str]]:
    """Which failures are mistakes, because every kind of answer leads to them, and which are only remarkable.

    Args:
        tries: Kinds of answers, each with what was raised.
        what: What was tried, as the subject of a sentence.
        sure: Whether the tasks are the run's; what is raised on an invented one may not be raised in the run.
    """
    wrong: dict[tuple[str, str], str] = {}
    unclear = []
    for kind, failures in tries:
        for failure in failures:
            same = [any((f.place, f.kind) == (failure.place, failure.kind) for f in others) for _, others in tries]
            if failure.certain:
                wrong.setdefault((failure.place, failure.kind or failure.text), str(failure))
            elif sure and len(tries) > 1 and all(same) and not failure.outside:
                said = f"{failure} ({what} raises it whatever the agents answer)"
                wrong.setdefault((failure.place, failure.kind), said)
            else:
                kinds = "" if all(same) else f" when every answer is {kind}"
                unclear.append(f"{failure.place}: {what} does not run{kinds}: {failure.kind}: {failure.text}")
    return list(wrong.values()), list(dict.fromkeys(unclear))
