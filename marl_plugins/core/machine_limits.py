"""What this process may use of its machine: a scheduler's choice of cores, and the limits of its
control groups."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Returns how many cores this process may use at a time, whatever the machine has."""
    return max(1, int(min(allowed_cores(), read_core_limit() or float("inf"))))


def allowed_cores() -> int:
    """Returns how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_memory_limit() -> int | None:
    """Returns the smallest limit from our control group up to the root, for either version; None
    without a limit."""
    texts = _read_limits("memory", "memory.max", "memory.limit_in_bytes")
    values = [int(text) for text in texts if text.isdigit()]
    return min(values, default=None)


def read_core_limit() -> float | None:
    """Returns the cores that our control group may use concurrently (version 2); None without a
    limit."""
    pairs = [text.split() for text in _read_limits("cpu", "cpu.max", None)]
    return min(
        (int(quota) / int(period) for quota, period in pairs if quota.isdigit()), default=None
    )


def _read_limits(controller: str, new: str, old: str | None) -> list[str]:
    """Contents of a limit's files, from our group up; in a container the group's path is often
    absent and the root is ours."""
    tree, own = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
    texts = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            place, name = tree, new
        elif controller in controllers.split(",") and old:
            place, name = tree / controller, old
        else:
            continue
        group = Path(path.lstrip("/"))
        files = [place / part / name for part in (group, *group.parents)]
        texts += [file.read_text().strip() for file in files if file.is_file()]
    return texts
