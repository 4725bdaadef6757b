"""The C library, for what Python has no function for."""

import ctypes
import os

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_NO_NEW_PRIVS = 38


def check(result: int, what: str) -> int:
    """Returns the result of a call to the C library.

    Raises:
        OSError: It failed.
    """
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def no_new_privileges() -> None:
    """Lets no file give a process more rights than its parent had, from now on."""
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
