"""What our service and SandboxFusion's server answer differently."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """A request, and whether an answer (HTTP status, JSON) is as either server's.

    Args:
        ours, theirs: What each does.
    """

    name: str
    request: dict[str, Any]
    ours: str
    is_ours: Callable[[int, Any], bool]
    theirs: str
    is_theirs: Callable[[int, Any], bool]


def refused(field):
    return lambda status, body: status == 422 and body["detail"][0]["loc"][:2] == ["body", field]


def prints(text):
    return lambda status, body: status == 200 and body["run_result"]["stdout"] == text


def late(status, body):
    return body["run_result"]["status"] == "TimeLimitExceeded"


def encoded(text):
    return base64.b64encode(text.encode()).decode()


DIFFERENCES = (
    Difference(
        "languages",
        {"code": "print 1", "language": "cpp"},
        "python, bash and pytest; others are refused (422, with the list)",
        refused("language"),
        "some 30, as far as their compilers are installed",
        lambda status, body: status == 200,
    ),
    Difference(
        "other addresses",
        {"path": "run_jupyter", "cells": ["1"]},
        "404",
        lambda status, body: status == 404,
        "`/run_jupyter`, and data sets with `/submit`",
        lambda status, body: status == 200,
    ),
    Difference(
        "absolute paths",
        {"code": "", "fetch_files": ["/etc/hostname"]},
        "refused (422)",
        refused("fetch_files"),
        "written and read, wherever they lead",
        lambda status, body: status == 200 and "/etc/hostname" in body["files"],
    ),
    Difference(
        "paths with `..`",
        {
            "code": "import os; print(os.path.exists('../marl-above'))",
            "files": {"../marl-above": encoded("x")},
        },
        "refused (422)",
        refused("files"),
        "written and read, wherever they lead",
        prints("True\n"),
    ),
    Difference(
        "links",
        {"code": "import os; os.symlink('/etc/hostname', 'a')", "fetch_files": ["a"]},
        "are no files: absent",
        lambda status, body: status == 200 and not body["files"],
        "are followed, to files of the server's",
        lambda status, body: status == 200 and "a" in body["files"],
    ),
    Difference(
        "text that is not base64",
        {"code": "print(open('a').read())", "files": {"a": "***"}},
        "refused (422)",
        refused("files"),
        "what can be decoded of it",
        prints("\n"),
    ),
    Difference(
        "more output than 192 KB",
        {"code": "print('x' * 300_000)", "run_timeout": 4},
        "read as it is written; of each stream the first and last 512 KB are returned",
        lambda status, body: len(body["run_result"]["stdout"]) == 300_001,
        "read when the program has ended, which then never does: TimeLimitExceeded",
        late,
    ),
    Difference(
        "output that is not UTF-8",
        {"code": "import os; os.write(1, b'a\\xff')"},
        "the bytes in question are replaced",
        prints("a\ufffd"),
        "the whole output is",
        lambda status, body: body["run_result"]["stdout"].startswith("[DecodeError]"),
    ),
    Difference(
        "the environment",
        {"code": "import os; print(len(os.environ) > 12 or 'SANDBOX_CONFIG' in os.environ)"},
        "clean",
        prints("False\n"),
        "the server's",
        prints("True\n"),
    ),
    Difference(
        "what a program leaves running",
        {
            "code": "import os, time\nprint(1, flush=True)\nif os.fork() == 0:\n    time.sleep(60)",
            "run_timeout": 4,
        },
        "is ended with it, after 0.3 seconds",
        lambda status, body: body["status"] == "Success",
        "holds the answer until its output is closed, or the time is over",
        late,
    ),
    Difference(
        "a killed program",
        {"code": "import os; os.kill(os.getpid(), 9)"},
        "standard error says by what, or which limit",
        lambda status, body: "SIGKILL" in body["run_result"]["stderr"],
        "the exit code alone",
        lambda status, body: (
            (body["run_result"]["return_code"], body["run_result"]["stderr"]) == (-9, "")
        ),
    ),
    Difference(
        "memory without a limit",
        {"code": "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[0] < 0)"},
        "`--most_memory_mb`, for all processes of a program together; a larger limit is refused "
        "(422)",
        prints("False\n"),
        "none; a limit is each process's address space",
        prints("True\n"),
    ),
)
