"""seccomp filters in the kernel's classic BPF: one that allows what is listed (system_calls.py),
one that refuses a few signals.

Of Linux's man pages: seccomp(2), seccomp_unotify(2), bpf(4). No library is needed, and a filter
costs a program 0.1 ms.
"""

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping

from marl_plugins.sandbox import system_calls
from marl_plugins.sandbox.kernel import check, libc, no_new_privileges

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
SECCOMP = {"x86_64": 317, "aarch64": 277}
SET_MODE_FILTER = 1
NEW_LISTENER, WAIT_KILLABLE = 8, 32
"""The second, of Linux 5.19 and later: no signal but SIGKILL interrupts a question that is being
answered."""
X32 = 0x40000000

LOAD, AND, EQUAL, AT_LEAST, BITS, RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
ALLOWED, ERROR, ASKED, KILLED = 0x7FFF0000, 0x00050000, 0x7FC00000, 0x80000000
Code = list[tuple[int, int, int, int]]
"""Instructions: what, how many to skip if true, how many if false, and with which number."""


def machine() -> str:
    """Returns the architecture."""
    return platform.machine()


def outcome(action: int) -> tuple[int, int, int, int]:
    """Returns the instruction that returns what comes of a call."""
    known = {system_calls.ALLOW: ALLOWED, system_calls.ASK: ASKED}
    return RETURN, 0, 0, known.get(action, ERROR | max(action, 0))


def begin() -> Code:
    """Kills what is of another architecture, and loads the call's number."""
    code: Code = [
        (LOAD, 0, 0, 4),
        (EQUAL, 1, 0, AUDIT_ARCH[machine()]),
        (RETURN, 0, 0, KILLED),
        (LOAD, 0, 0, 0),
    ]
    if machine() == "x86_64":
        code += [(AT_LEAST, 0, 1, X32), outcome(errno.ENOSYS)]
    return code


def tested(check: "system_calls.Check") -> Code:
    """Returns the check's outcome where it applies; the call's number is lost."""
    code: Code = [(LOAD, 0, 0, 16 + 8 * check.argument + 4 * check.high)]
    if not check.values:
        return [*code, (BITS, 0, 1, check.mask), outcome(check.action)]
    if check.mask != system_calls.FULL:
        code.append((AND, 0, 0, check.mask))
    last = len(check.values) - 1
    code += [
        (EQUAL, last - n, int(n == last), value & system_calls.FULL)
        for n, value in enumerate(check.values)
    ]
    return [*code, outcome(check.action)]


def filter_of(rules: Mapping[str, "system_calls.Rule"], otherwise: int = errno.ENOSYS) -> bytes:
    """Returns the filter for these rules, and what comes of other calls, as the kernel reads it.
    One number after the other, those with checks first: the kernel remembers which calls are
    allowed whatever their arguments are."""
    column = system_calls.COLUMN[machine()]
    code = begin()
    for name, rule in sorted(rules.items(), key=lambda pair: not pair[1].checks):
        number = system_calls.NUMBERS[name][column]
        if number >= 0:
            body = [
                *(step for check in rule.checks for step in tested(check)),
                outcome(rule.otherwise),
            ]
            code += [(EQUAL, 0, len(body), number), *body]
    instructions = [*code, outcome(otherwise)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def install(code: bytes, listened: bool = False) -> int:
    """Applies a filter to this process and to all that it starts, and returns the descriptor by
    which its questions are answered, if any.

    Raises:
        OSError: The kernel refuses it; EBUSY: whoever runs this container has such a descriptor
            already.
    """
    held = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(held))
    no_new_privileges()
    if listened:
        listener: int = libc.syscall(
            SECCOMP[machine()], SET_MODE_FILTER, NEW_LISTENER | WAIT_KILLABLE, program
        )
        if listener >= 0 or ctypes.get_errno() != errno.EINVAL:
            return check(listener, "seccomp")
    return check(
        libc.syscall(SECCOMP[machine()], SET_MODE_FILTER, NEW_LISTENER if listened else 0, program),
        "seccomp",
    )


def problem() -> str:
    """Returns why there are no filters whose questions can be answered here; empty where there
    are."""
    from concurrent.futures import ThreadPoolExecutor

    if machine() not in SECCOMP:
        return f"no seccomp filters on this machine ({machine()}): x86-64 and aarch64 have them"
    code = filter_of({}, system_calls.ALLOW)
    with ThreadPoolExecutor(1) as thread:  # a filter is one thread's, and ends with it
        try:
            os.close(thread.submit(install, code, listened=True).result())
        except OSError as error:
            return (
                f"seccomp filters with user notification are refused ({error.strerror}); they need "
                "Linux 5.0, CONFIG_SECCOMP_FILTER and a container that allows them"
            )
    return ""
