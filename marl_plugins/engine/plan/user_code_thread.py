"""User code that is tried before anything starts: in a thread that can be left behind, and what it
raises by file and line."""

from __future__ import annotations

import asyncio
import gc
import linecache
import random
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_plugins.core import workflow
from marl_plugins.core.failures import RecipeError, leaves_of
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.loading import is_users, line_of, text_of, users_line
from marl_plugins.core.problems import Problem, Where, at
from marl_plugins.core.roles import NotInRecipe
from marl_plugins.core.trajectory import Action
from marl_plugins.engine.plan.held_interpreter import InterpreterWatch
from marl_plugins.engine.plan.script import WORD

T = TypeVar("T")
NEVER_AWAITED = "was never awaited"
OTHER_LOOP = "is bound to a different event loop"
"""What asyncio says of a lock or a semaphore of a module where there is a loop for each trial; a
run has one."""
MAIN_THREAD = ("signal only works in main thread", "threaded environment")
"""What Python and math-verify say of alarms where code is tried in a thread."""
USER_CODE_SECONDS = 10.0
"""User code that takes longer is left behind."""
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Failure:
    """An exception that user code raised.

    Args:
        place: File and line.
        kind: Name of the exception's type; empty where the text says everything.
        certain: Whether no answer of an agent changes it.
        raised: Whether a line of the user's raised it; else what the user's code returned is at
            fault.
        outside: Whether it may not be raised in the run: the network's, a service's, that of an
            alarm in a thread.
    """

    place: str
    kind: str
    text: str
    certain: bool = False
    raised: bool = True
    outside: bool = False

    @property
    def said(self) -> str:
        """Returns what was raised, as a reader of a traceback knows it."""
        return ": ".join(filter(None, [self.kind, self.text]))

    @property
    def mistake(self) -> Problem:
        """The problem of a certain failure."""
        return Problem("rehearsal.mistake", where_of(self.place), self.said)

    def warning(self, what: str, when: str) -> Problem:
        """Returns the problem of one that other answers may avoid; `when` is empty where all of
        those tried led to it."""
        text = f"{what} does not run{f' when {when}' if when else ''}: {self.said}"
        return Problem("rehearsal.may_raise", where_of(self.place), text, severity="warning")


def where_of(place: str) -> Where:
    """Returns the place of `FILE:LINE`, or of a file alone."""
    file, _, number = place.rpartition(":")
    return at(line=place) if file and number.isdigit() else at(file=place)


@dataclass
class Capture:
    """Warnings and failures that are kept while user code runs apart.

    Args:
        warnings: Python's, of which some are mistakes.
        failed: Whether user code has raised something.
        loop: The event loop on which it runs, where that is known.
        ticks: How long nothing of it has come to its end.
    """

    warnings: list[warnings.WarningMessage]
    failed: bool = False
    loop: asyncio.AbstractEventLoop | None = None
    ticks: int = 0

    def goes_on(self) -> None:
        """Says that a part of the work is done: the time for the next one begins."""
        self.loop, self.ticks = asyncio.get_running_loop(), 0


class UserCodeTimeout(Exception):
    """User code did not end in time.

    Args:
        place: Where it is, None where no line of the user's is being executed.
        seconds: How long it was waited for.
    """

    def __init__(self, place: str | None, seconds: float):
        self.place = place
        self.seconds = seconds
        super().__init__(place)

    def problem(self, what: str, where: str) -> Problem:
        """Returns the problem for the user; `where` is named where nothing else is known."""
        return Problem(
            "rehearsal.blocks",
            where_of(self.place or where),
            f"{what} was still here after {self.seconds:g} s: it blocks or never ends",
            fix="wait with `await` (asyncio.sleep, asyncio.to_thread), and bound loops",
        )


def run_in_thread(work: Callable[[Capture], T], seconds: float | None = None) -> T:
    """Runs `work` in a thread of its own: nothing else stops code that blocks, and a notebook has
    an event loop already.

    Args:
        work: Is given what keeps Python's warnings, to which it may say that it goes on.
        seconds: For all of it, or each part that is done; default: `USER_CODE_SECONDS`.

    Raises:
        UserCodeTimeout: It was not done in that time. Work that keeps the interpreter to itself
            ends the process (held_interpreter.py).
    """
    seconds = USER_CODE_SECONDS if seconds is None else seconds
    results: list[T] = []
    raised: list[BaseException] = []

    def body() -> None:
        sys.set_coroutine_origin_tracking_depth(2)
        try:
            results.append(work(caught))
        except BaseException as error:  # raised again below, in the caller's thread
            raised.append(error)
        if caught.failed:
            # the frames of tracebacks keep coroutines, of which Python would complain later
            gc.collect()

    thread = threading.Thread(target=body, daemon=True, name="rehearsal")
    with warnings.catch_warnings(
        record=True
    ) as recorded:  # here, so that they are put back when the thread is left behind
        warnings.simplefilter("always", RuntimeWarning)
        caught = Capture(recorded)
        watch = InterpreterWatch()
        thread.start()
        try:
            while thread.is_alive() and caught.ticks < seconds / TICK_SECONDS:
                thread.join(TICK_SECONDS)  # while the whole machine stands still, one tick passes
                caught.ticks += 1
                watch.runs()
        finally:
            watch.close()
    for warning in recorded:
        if NEVER_AWAITED not in str(warning.message):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if thread.is_alive():
        place = line_of(thread) or (awaited_line(caught.loop) if caught.loop else None)
        _ask_to_end(thread)
        raise UserCodeTimeout(place, seconds)
    if raised:
        raise raised[0]
    return results[0]


def awaited_line(loop: asyncio.AbstractEventLoop) -> str | None:
    """Returns the innermost line of the user's at which a task of an event loop waits."""
    for task in asyncio.all_tasks(loop):
        coroutine: Any = task.get_coro()
        line = None
        while coroutine is not None:
            frame = getattr(coroutine, "cr_frame", None)
            line = (
                f"{frame.f_code.co_filename}:{frame.f_lineno}"
                if frame and is_users(frame, ())
                else line
            )
            coroutine = getattr(coroutine, "cr_await", None)
        if line is not None:
            return line
    return None


class AbandonedThread(SystemExit):
    """Raised in a thread that nobody waits for any more; not the user's."""


def _ask_to_end(thread: threading.Thread) -> None:
    """Raises `AbandonedThread` in a thread that executes Python, so that a busy loop does not last
    for ever.

    One that waits is left to it: as long as an exception waits for a thread, CPython 3.11 does not
    get past the first call of another one that is traced (reached.py).
    """
    if not _is_busy(thread):
        return
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident or 0), ctypes.py_object(AbandonedThread)
    )


def _is_busy(thread: threading.Thread) -> bool:
    """Returns whether a thread uses the processor; where that is not known, it does."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return True
    try:
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        before = time.clock_gettime(clock)
        time.sleep(TICK_SECONDS)
        return time.clock_gettime(clock) > before
    except OSError:  # it has ended meanwhile
        return False


@contextmanager
def own_loop() -> Iterator[Callable[[Coroutine[Any, Any, T]], T]]:
    """Provides an event loop of its own. What is yielded runs a coroutine on it as `asyncio.run`
    does, but is silent about what user code leaves running, and does not wait for its threads."""
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda loop, context: None)

    def run(main: Coroutine[Any, Any, T]) -> T:
        try:
            return loop.run_until_complete(main)
        finally:
            if left := asyncio.all_tasks(loop):
                for task in left:
                    task.cancel()
                loop.run_until_complete(asyncio.wait(left, timeout=0.1))

    try:
        yield run
    finally:
        loop.close()


def run_on_a_loop(main: Coroutine[Any, Any, T]) -> T:
    """Runs one coroutine on an event loop of its own (`own_loop`)."""
    with own_loop() as run:
        return run(main)


@contextmanager
def failures_kept(failures: list[Failure], where: str, caught: Capture) -> Iterator[None]:
    """Keeps what user code raises inside as failures, or else the coroutines that it has not
    awaited.

    Args:
        where: Named where no line of the user's took part.
        caught: Of `run_in_thread`.
    """
    before = len(caught.warnings)
    try:
        yield
    except AbandonedThread:
        raise
    except BaseException as error:  # user code's, which may derive its own from `BaseException`
        failures += [failure_of(leaf, where) for leaf in leaves_of(error)]
        caught.failed = True
    failures[:] = [failure for failure in failures if OTHER_LOOP not in failure.text]
    if not failures:
        failures += [
            _forgotten(w.source, where)
            for w in caught.warnings[before:]
            if NEVER_AWAITED in str(w.message)
        ]


def called(function: Callable[[], T], where: str) -> tuple[list[T], list[Failure]]:
    """Returns what a function of the user's gives, as the only item of a list, and what it raises.

    Args:
        where: Named where no line of the user's took part.

    Raises:
        UserCodeTimeout: It does not end.
    """
    results: list[T] = []
    failures: list[Failure] = []

    def call(caught: Capture) -> None:
        with failures_kept(failures, where, caught):
            results.append(function())

    run_in_thread(call)
    return results, failures


def _forgotten(coroutine: Any, where: str) -> Failure:
    origin = [
        frame
        for frame in getattr(coroutine, "cr_origin", None) or ()
        if frame[0] != workflow.__file__
    ]
    place = f"{origin[0][0]}:{origin[0][1]}" if origin else where
    name = getattr(coroutine, "__qualname__", "a coroutine")
    return Failure(
        place, "", f"{name} is called, and nobody awaits it; write `await` before it", certain=True
    )


def failure_of(error: BaseException, where: str) -> Failure:
    """Returns what was raised, and where; `where` is for what no line of the user's took part
    in."""
    if isinstance(error, InvalidCall):
        return Failure(error.place or where, "", error.problem, certain=True)
    if isinstance(error, RecipeError):
        return Failure(error.place, error.kind, error.detail)
    line = users_line(error, ())
    place = line or where
    if isinstance(error, NotInRecipe) and error.written:
        return Failure(place, "", str(error), certain=True)
    if isinstance(error, SystemExit | KeyboardInterrupt):
        text = f"{error!r} ends the program; raise an exception that says what is wrong"
        return Failure(place, "", text, certain=True)
    return Failure(
        place,
        type(error).__name__,
        f"{text_of(error)}{_hint(error, place)}",
        raised=line is not None,
        outside=_of_the_network(error) or any(message in text_of(error) for message in MAIN_THREAD),
    )


def is_mistake(error: BaseException) -> bool:
    """Returns whether an exception says that a name is wrong: no answer raises it, and whoever
    catches it seldom means to."""
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    # of a program of an agent's, in `exec`
    if any(frame.filename.startswith("<") for frame in frames):
        return False
    if isinstance(error, NotInRecipe):
        return error.written
    if isinstance(error, KeyError):
        return _is_of_metadata(users_line(error, ()) or "")
    if isinstance(error, AttributeError):
        return type(error.obj).__module__.startswith("marl_plugins.")
    return isinstance(error, NameError)


def caught_mistakes(
    raised: list[BaseException], failures: Sequence[Failure], where: str
) -> list[Failure]:
    """Returns the mistakes among what user code raised and caught itself; empties `raised`, because
    tracebacks keep frames.

    Args:
        failures: What it let through.
        where: Named where no line of the user's took part.
    """
    places = {failure.place for failure in failures}
    mistakes = [failure_of(error, where) for error in raised if is_mistake(error)]
    raised.clear()
    return [mistake for mistake in mistakes if mistake.place not in places]


def shared_generators() -> tuple[Any, Any]:
    """Returns the states of Python's generator and NumPy's, which draw differently when a run is
    resumed."""
    numpy = sys.modules.get("numpy")
    state = (
        numpy.random.get_state() if numpy is not None and "numpy.random" in sys.modules else None
    )
    return random.getstate(), None if state is None else (state[1].tobytes(), state[2])


def _is_of_metadata(place: str) -> bool:
    file, _, number = place.rpartition(":")
    return ".metadata[" in linecache.getline(file, int(number) if number.isdigit() else 0)


def _hint(error: BaseException, place: str) -> str:
    """Returns what the exception itself does not say, to end its text with."""
    if isinstance(error, AttributeError) and isinstance(error.obj, Action):
        return "; an action's text is `action.text`"
    if isinstance(error, ValueError) and any(message in text_of(error) for message in MAIN_THREAD):
        return (
            "; a run calls it in the main thread, where its alarm interrupts all trajectories: "
            "see marl_plugins.grading"
        )
    if isinstance(error, KeyError) and _is_of_metadata(place):
        return (
            "; the task has no such metadata: every field of the data but prompt and label is in it"
        )
    return ""


def _of_the_network(error: BaseException) -> bool:
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, ConnectionError | TimeoutError | socket.gaierror):
            return True
        inner = inner.__cause__ or inner.__context__
    return False


Tries = Sequence[tuple[str, Sequence[Failure]]]
"""When something was tried ("every answer is a word"), with what it raised."""


def sort_out(tries: Tries, what: str, *, sure: bool) -> tuple[list[Problem], list[Problem]]:
    """Sorts failures into mistakes, because every kind of answers leads to them, and warnings.

    Args:
        what: What was tried, as the subject of a sentence.
        sure: Whether the tasks are the run's; what is raised on an invented one may not be raised
            in the run.
    """
    wrong: dict[tuple[str, str], Problem] = {}
    unclear: dict[Problem, None] = {}
    for when, failures in tries:
        for failure in failures:
            same = [
                [f for f in others if (f.place, f.kind) == (failure.place, failure.kind)]
                for _, others in tries
            ]
            # such as the key of a table
            always = all(same) and not any(WORD in f.text for others in same for f in others)
            if failure.certain:
                wrong.setdefault((failure.place, failure.kind or failure.text), failure.mistake)
            elif sure and len(tries) > 1 and always and not failure.outside:
                text = f"{failure.said} ({what} raises it whatever the agents answer)"
                fix = "if an answer avoids it, state it: give the role an example"
                wrong.setdefault(
                    (failure.place, failure.kind),
                    Problem("rehearsal.raises", where_of(failure.place), text, fix=fix),
                )
            else:
                unclear.setdefault(failure.warning(what, "" if always else when))
    return list(wrong.values()), list(unclear)
