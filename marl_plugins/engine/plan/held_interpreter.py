"""Ends a process whose interpreter one thread keeps to itself: a regular expression that backtracks
lets nothing else run, for years, and neither a time-out nor Ctrl-C gets through.

Two watches that need no interpreter are set again and again. faulthandler's writes where all
threads are; a timer of the C library, on the process's CPU time, then ends it as a mistake of the
recipe ends it, which faulthandler cannot: it only knows exit code 1.
"""

from __future__ import annotations

import ctypes
import faulthandler

HELD_SECONDS = 10
"""Nothing of a recipe or a library keeps the interpreter for so long."""
EXIT_CODE, STDERR = 2, 2
CPU_CLOCK, IN_A_THREAD = 2, 2
"""CLOCK_PROCESS_CPUTIME_ID and SIGEV_THREAD of Linux."""


class TimerEvent(ctypes.Structure):
    """`struct sigevent`: what happens when a timer ends."""

    _fields_ = (
        ("value", ctypes.c_int64),
        ("signal", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("unused", ctypes.c_char * 40),
    )


class InterpreterWatch:
    """Watches from when it is made until it is closed; who watches says that it runs."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(None)
        self.timer = ctypes.c_void_p()
        self.has_timers = hasattr(self.library, "timer_create")  # macOS has none
        if self.has_timers:
            end = ctypes.cast(self.library._exit, ctypes.c_void_p)
            event = TimerEvent(EXIT_CODE, 0, IN_A_THREAD, end.value)
            self.library.timer_create(CPU_CLOCK, ctypes.byref(event), ctypes.byref(self.timer))
        self.runs()

    def runs(self) -> None:
        """Sets both watches anew."""
        faulthandler.dump_traceback_later(HELD_SECONDS, file=STDERR, exit=not self.has_timers)
        if self.has_timers:
            times = (ctypes.c_long * 4)(0, 0, HELD_SECONDS, 10**8)  # once; seconds, nanoseconds
            self.library.timer_settime(self.timer, 0, times, None)

    def close(self) -> None:
        """Ends both watches."""
        faulthandler.cancel_dump_traceback_later()
        if self.has_timers:
            self.library.timer_delete(self.timer)
