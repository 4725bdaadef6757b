"""Attempts to get out of the sandbox (escapes.py), at every level that this machine has, as an
ordinary user."""

import json
import os
import stat
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import pytest
from escapes import ATTEMPTS
from hostile_programs import LEVELS

from marl_plugins.sandbox import confine, levels

HERE = Path(__file__).resolve().parent
SOMEBODY = 12345
"""Who the attempts are made as where the tests run as root."""


def reachable(path):
    """Whether others may use a file."""
    return os.path.exists(path) and all(
        p.stat().st_mode & stat.S_IXOTH for p in Path(path).resolve().parents
    )


def python():
    """A Python that an ordinary user can start; None: there is none."""
    usual = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    if os.getuid() != 0:
        return sys.executable
    return next((path for path in (sys.executable, usual) if reachable(path)), None)


def own_mounts():
    """In the child, where it is root's: mounts of its own."""
    if os.getuid() == 0:
        confine.check(confine.libc.unshare(confine.CLONE_NEWNS), "unshare")
        confine.mount("none", "/", "", confine.MS_REC | confine.MS_PRIVATE)


def leave_root():
    """In the child, where it is root's: mounts of its own and an ordinary user's rights."""
    own_mounts()
    if os.getuid() == 0 and python() is not None:
        os.setgroups([])
        os.setgid(SOMEBODY)
        os.setuid(SOMEBODY)


CASES = {level: ([level], leave_root) for level in LEVELS}
if "landlock" in LEVELS:
    CASES["landlock of Linux 5.13"] = (["landlock", "1", "quick"], leave_root)
    for abi in {3, 5} & {*range(levels.examine().abi)}:  # the last without TCP, without signals
        CASES[f"landlock, version {abi}"] = (["landlock", str(abi), "quick"], leave_root)
if "namespaces" in LEVELS:
    CASES["namespaces of Linux 5.13"] = (["namespaces", "1", "quick"], leave_root)
if os.getuid() == 0 and python() is not None:
    CASES["process of root"] = (["process"], own_mounts)


@pytest.fixture(scope="module", params=CASES)
def came(request):
    """The case, its level, and what came of each attempt."""
    words, prepare = CASES[request.param]
    path = os.pathsep.join([str(HERE.parent), str(HERE), sysconfig.get_paths()["purelib"]])
    with tempfile.TemporaryDirectory() as place:  # pytest's folders are its user's alone
        os.chmod(place, 0o777)
        done = subprocess.run(
            [python() or sys.executable, "-B", str(HERE / "escapes.py"), *words],
            env={
                "PATH": "/usr/bin:/bin",
                "PYTHONPATH": path,
                "TMPDIR": place,
                "HOME": place,
                "KEY": f"marl{os.getpid()}",
            },
            cwd="/",
            capture_output=True,
            text=True,
            preexec_fn=prepare,
        )
    assert done.returncode == 0, done.stderr
    return request.param, words[0], json.loads(done.stdout)


def test_what_a_level_holds_is_held(came):
    _, level, found = came
    promised = [
        n
        for n, a in ATTEMPTS.items()
        if n in found and levels.LEVELS.index(a.held) <= levels.LEVELS.index(level)
    ]
    if level == "process" and python() is None:
        return  # as root some of them get out
    assert {name: found[name] for name in promised} == dict.fromkeys(promised, "held")


def test_attempts_are_real(came):
    """Most of what the level `process` does not promise gets out there; the rest this machine holds
    by itself."""
    case, _, found = came
    if case == "process":
        open_ones = [name for name, attempt in ATTEMPTS.items() if attempt.held != "process"]
        assert sum(found[name] != "held" for name in open_ones) > 0.6 * len(open_ones), found
