"""The process that runs math-verify (math_verify.py): one question a line, `[answer, label]` as
JSON, each in a fork of its own with limits of CPU time and memory; 0 says yes.

Started by its path, so it imports nothing of the package.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys

CPU_SECONDS, MEMORY_BYTES = 1.0, 2 * 2**30
"""Limits of one question."""
USUAL = (
    *("\\frac{\\sqrt{2}}{2}", "x^2+2x+1", "(2,1)", "[0,\\pi)", "\\{1,2\\}", "3-4i", "x=\\frac12"),
    *("2^{10}", "x \\le 3", "\\log_2 8", "\\sin(x)", "\\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}"),
)
"""Answers of the usual kinds."""


def serve() -> None:
    """Answers questions until there are no more."""
    for text in USUAL:  # fills the caches of its parser: a question then takes milliseconds
        compare(text, text + "+1")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            answer_one(line)
        print(os.waitpid(child, 0)[1], flush=True)


def answer_one(line: str) -> None:
    """Ends with 0 where two formulas have one value."""
    differ = True
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        differ = not compare(*json.loads(line))
    finally:
        os._exit(differ)


def compare(answer: str, label: str) -> bool:
    """Returns whether two formulas have one value."""
    from math_verify import parse, verify

    gold, parsed = (parse(f"${text}$", parsing_timeout=None) for text in (label, answer))
    return bool(verify(gold, parsed, timeout_seconds=None))


if __name__ == "__main__":
    serve()
