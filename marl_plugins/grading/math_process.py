"""The process that runs math-verify (math_verify.py): each question in a fork of its own, with
limits of CPU time and memory.

Started by its path, so it imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import time

CPU_SECONDS, MEMORY_BYTES = 1.0, 2 * 2**30
"""Limits of one answer, whatever the number of its parts, and of one comparison."""
USUAL = (
    *(
        "\\frac{\\sqrt{2}}{2}",
        "x^2+2x+1",
        "(2,1)",
        "[0,\\pi)",
        "\\{1,2\\}",
        "5\\%",
        "3-4i",
        "x=\\frac12",
        "90^\\circ",
    ),
    *(
        "2^{10}",
        "\\binom{5}{2}",
        "5!",
        "x \\le 3",
        "\\log_2 8",
        "\\sin(x)",
        "|x|",
        "\\text{no}",
        "42 \\text{ cm}",
    ),
    "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}",
)
"""Answers of the usual kinds."""
BEGUN, YES, NO = b"b", b"1", b"0"
"""What a question's process says; after the last two, how many seconds of CPU it took."""


def serve(control: socket.socket) -> None:
    """Answers questions, each in a process of its own, as many at a time as there are cores."""
    for text in (
        USUAL
    ):  # fills the caches of its parser before the first fork: a question then takes milliseconds
        compare(text, text + "+1")
    running, most = 0, os.cpu_count() or 1
    while True:
        _, sockets, _, _ = socket.recv_fds(control, 1, 1)
        if not sockets:
            return
        while running and (running >= most or os.waitpid(-1, os.WNOHANG)[0]):
            if running >= most:
                os.wait()
            running -= 1
        if os.fork() == 0:
            try:
                control.close()
                answer_one(socket.socket(fileno=sockets[0]))
            finally:
                os._exit(0)
        running += 1
        os.close(sockets[0])


def answer_one(connection: socket.socket) -> None:
    """Answers one question, and says before that its time has begun."""
    connection.sendall(BEGUN)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    answer, label, seconds = json.loads(connection.makefile("rb").readline())
    signal.setitimer(
        signal.ITIMER_PROF, seconds
    )  # its signal ends the process, whatever it is doing
    verdict = YES if compare(answer, label) else NO
    connection.sendall(verdict + str(time.process_time()).encode())


def compare(answer: str, label: str) -> bool:
    """Returns whether two formulas have one value."""
    from math_verify import parse, verify

    gold, parsed = (parse(f"${text}$", parsing_timeout=None) for text in (label, answer))
    return bool(verify(gold, parsed, timeout_seconds=None))


if __name__ == "__main__":
    with socket.socket(fileno=0) as questions:
        serve(questions)
