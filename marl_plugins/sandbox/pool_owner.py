"""The owner's side of a pool (pool.py): starts it, has it fork processes, hears what comes of
them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from marl_plugins.sandbox.pool import LARGEST_MESSAGE_BYTES, shut
from marl_plugins.sandbox.streams import Stream

SEALS = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
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


@contextlib.contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """Provides the descriptor of a file in memory that nobody can change: a program may otherwise
    fill it, with memory that nobody counts."""
    descriptor = os.memfd_create("input", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(descriptor, content, 0)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.asynccontextmanager
async def forked(
    control: socket.socket,
    request: Mapping[str, Any],
    inputs: Sequence[int],
    limits: Sequence[int],
    read: Callable[[int], object] = lambda _: None,
) -> AsyncIterator[tuple[socket.socket, list[Stream]]]:
    """Provides a process that a pool has forked, and has it ended: the connection to it, and what
    it writes.

    Args:
        inputs: Descriptors of what it is given.
        limits: How much is kept of each stream that it writes. Their descriptors come after these.
        read: Called with the number of bytes that it has written each time.

    Raises:
        ConnectionError: The pool has gone.
        OSError: It cannot be handed over.
    """
    message = json.dumps(request).encode()
    with contextlib.ExitStack() as opened, contextlib.ExitStack() as handed_over:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed_over.callback(theirs.close)
        opened.callback(ours.close)
        opened.callback(shut, ours)
        streams, descriptors = [], [theirs.fileno(), *inputs]
        for limit in limits:
            reading, writing = os.pipe()
            handed_over.callback(os.close, writing)
            descriptors.append(writing)
            streams.append(Stream(reading, limit, read))
            opened.callback(streams[-1].close)
        while not _sent(control, message, descriptors):  # noqa: ASYNC110 -- nothing says when there is room
            await asyncio.sleep(BUSY_SECONDS)
        handed_over.close()
        ours.setblocking(False)
        yield ours, streams


def _sent(control: socket.socket, message: bytes, descriptors: Sequence[int]) -> bool:
    """Sends a message, and returns whether the pool's queue has room for it."""
    try:
        socket.send_fds(control, [message], descriptors)
    except OSError as error:
        if error.errno not in (errno.EAGAIN, errno.ETOOMANYREFS, errno.ENOBUFS):
            raise
        return False
    return True


async def heard(connection: socket.socket) -> dict[str, Any] | None:
    """Returns the next message; None where the other end is closed."""
    try:
        data = await asyncio.get_running_loop().sock_recv(connection, LARGEST_MESSAGE_BYTES)
    except ConnectionError:
        return None
    return json.loads(data) if data else None
