"""The owner's side of a pool (pool.py): starts it, has it fork processes, hears what comes of
them."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from marl_plugins.sandbox.pool import LARGEST_MESSAGE_BYTES

BUSY_SECONDS = 0.002
"""Seconds between two attempts to send to a pool whose queue is full."""
BOOT = """
import sys
path, known, folders = sys.path[:], set(sys.modules), {folders!r}
sys.path[:0] = folders
import {module}
sys.path[:] = path
for name in set(sys.modules) - known:  # programs may have modules of the same names
    if str(getattr(sys.modules[name], "__file__", "")).startswith(tuple(folders)):
        del sys.modules[name]
{module}.main()
"""


def python(file: str, *options: str, program: str = "") -> list[str]:
    """Returns the words that start a module without the package, beside those of this folder.

    Args:
        file: Where the module is.
        program: Python's; default: that of this process.
    """
    module = os.path.basename(file).removesuffix(".py")
    folders = list(dict.fromkeys([os.path.dirname(file), os.path.dirname(__file__)]))
    code = BOOT.format(folders=folders, module=module)
    return [program or sys.executable, *options, "-c", code]


def start_pool(
    words: Sequence[str], settings: Mapping[str, Any], **options: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts a process whose last word is `settings` in JSON, with the socket to it as `control`.

    Raises:
        OSError: It cannot be started.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            process = subprocess.Popen(
                [*words, json.dumps({**settings, "control": theirs.fileno()})],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is the run's to handle
                **options,
            )
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return process, ours


async def begin(
    control: socket.socket, request: Mapping[str, Any], descriptors: Sequence[int]
) -> socket.socket:
    """Hands a request over as soon as the pool's queue has room for it, and returns the connection
    to what is forked for it.

    Raises:
        OSError: The pool has gone.
    """
    message = json.dumps(request).encode()
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        try:
            while True:
                try:
                    socket.send_fds(control, [message], [theirs.fileno(), *descriptors])
                    break
                except OSError as error:
                    if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS):
                        raise
                await asyncio.sleep(BUSY_SECONDS)
        except BaseException:
            ours.close()
            raise
    ours.setblocking(False)
    return ours


async def heard(connection: socket.socket) -> dict[str, Any] | None:
    """Returns the next message; None where the other end is closed."""
    try:
        data = await asyncio.get_running_loop().sock_recv(connection, LARGEST_MESSAGE_BYTES)
    except ConnectionError:
        return None
    return json.loads(data) if data else None
