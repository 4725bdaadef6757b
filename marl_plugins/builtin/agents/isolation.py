"""Namespaces for a recipe's program: it reads the system, Python and the recipe's folder, writes to
an empty folder, and has no network but the endpoint.

The endpoint's socket is made inside, by the launcher, and handed out to the run, which answers
there: a socket belongs to the network in which it was made, whoever listens.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from marl_plugins.sandbox.levels import SYSTEM, TRIAL_SECONDS, find_bubblewrap, namespaces

PREFIXES = (
    "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, "
    "sys.base_exec_prefix]))"
)
OWN = ["--as-pid-1", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]


def words_before(python: str, paths: Sequence[Path]) -> list[str]:
    """Returns the words that start a Python in namespaces of its own.

    Args:
        python: Its program.
        paths: What it may read in addition to itself and the system.

    Raises:
        OSError, ValueError: It does not run.
    """
    output = subprocess.run(
        [python, "-c", PREFIXES], capture_output=True, text=True, timeout=TRIAL_SECONDS
    ).stdout
    prefixes = [
        path for prefix in json.loads(output) for path in (prefix, os.path.realpath(prefix))
    ]
    program = os.path.dirname(os.path.abspath(shutil.which(python) or python))
    read = [*SYSTEM, *prefixes, program, *map(str, paths)]
    return namespaces(find_bubblewrap(), OWN, read)


def environment_of(variables: Mapping[str, str]) -> dict[str, str]:
    """Returns what a program in namespaces knows of the run's environment: nothing that could be a
    secret."""
    return {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ} | dict(
        variables
    )
