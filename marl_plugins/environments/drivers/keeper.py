"""Keeps a server running: `keeper.py RESTARTS COMMAND SLOT...`, the command as JSON.

It ends the server, with all of its process group, when its standard input is closed. Where it gives
up, it removes the slots, so that nobody waits for the server any more.
"""

import json
import os
import select
import signal
import subprocess
import sys

LONGEST_END = 5.0
"""Seconds that a server has to end before it is killed."""


def end(server: "subprocess.Popen[bytes]") -> None:
    """Ends a server and what it has started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(server.pid, number)
            server.wait(LONGEST_END)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def main() -> int:
    restarts, command, slots = int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:]
    for _ in range(restarts + 1):
        try:
            server = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            sys.exit(f"{command[0]} cannot be started: {error.strerror}")
        while server.poll() is None:
            if select.select([sys.stdin], [], [], 0.5)[0]:
                end(server)
                return 0
        end(server)
    for slot in slots:
        os.remove(slot)
    return server.returncode


if __name__ == "__main__":
    sys.exit(main())
