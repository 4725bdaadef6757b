"""The port at which the ranks of a policy meet, kept from others until they do."""

from __future__ import annotations

import socket


class MasterPort:
    """Replaces upstream's search for a free port, which closes the port again (launcher.py:45-48).

    Rank 0 draws the port when it is made, and torch listens on it seconds later, when the strategy
    is set up. Meanwhile any connection of any process on the machine could be given the same port;
    a run of several policies, or several runs at once, then ended with EADDRINUSE. So the process
    keeps a socket on it. Linux lets torch listen on the same port, since both sockets set
    SO_REUSEADDR and only one listens, and gives it to nobody who asks for any port.
    """

    _socket: socket.socket | None = None

    def _get_free_port(self) -> int:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        port: int = self._socket.getsockname()[1]
        return port
