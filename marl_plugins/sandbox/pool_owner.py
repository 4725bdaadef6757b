"""The owner's side of a pool (pool.py): starts it, has it fork processes, hears what comes of
them."""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from marl_plugins.sandbox.pool import LARGEST_MESSAGE_BYTES

BUSY_SECONDS = 0.002
"""Seconds between two attempts to send to a pool whose queue is full."""
BOOT = """
import sys, types
for name, folder in {packages!r}:  # as if they were empty
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from {module} import main
for name in [name for name in sys.modules if name.startswith("{top}")]:
    del sys.modules[name]  # of what runs there, which may import the real ones
main()
"""


def python(module: str, *options: str, program: str = "") -> list[str]:
    """Returns the words that run the `main` of a module, which may import this package's modules
    that need the standard library alone, and none of the packages that they are in.

    Args:
        program: Python's; default: that of this process.
    """
    top, *_ = parts = module.split(".")
    root = Path(__file__).parents[2]
    names = {*accumulate(parts[:-1], "{}.{}".format), __package__}
    packages = [(name, str(root / name.replace(".", "/"))) for name in sorted(names)]
    code = BOOT.format(packages=packages, module=module, top=top)
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
