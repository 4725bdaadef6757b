"""The machine as it is: Python, processor, memory, disk, folders, loopback, and which `openrlhf` a person would start."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from pathlib import Path

from marl_plugins.core.findings import Finding, fine, red, red_if, remark
from marl_plugins.hosts import cpu

GIB = 2**30


def machine(device: str) -> list[Finding]:
    """What cannot be installed."""
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = page * os.sysconf("SC_PHYS_PAGES"), page * os.sysconf("SC_AVPHYS_PAGES")
    there = Path("/proc/meminfo")
    if there.is_file():  # pages that the kernel would give back count as free
        free = next(
            (int(x.split()[1]) * 1024 for x in there.read_text().splitlines() if x.startswith("MemAvailable")), free
        )
    shm = Path("/dev/shm")
    return [
        python(sys.version_info[:2], platform.python_version()),
        system(platform.system(), platform.machine(), platform.release()),
        cores(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, core_limit()),
        memory(total, memory_limit(), free),
        *([shared_memory(shutil.disk_usage(shm).free, device)] if shm.is_dir() else []),
        disk("disk", Path.cwd(), shutil.disk_usage(Path.cwd()).free),
        disk("temporary files", temporary(), shutil.disk_usage(existing(temporary())).free),
    ]


def temporary() -> Path:
    """Where Ray keeps its sessions, and what does not fit into its memory."""
    return Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())


def python(version: tuple[int, ...], full: str) -> Finding:
    if version == (3, 11):
        return fine("python", f"{full}, {sys.executable}")
    if version == (3, 12):
        return remark("python", f"{full}, {sys.executable}", "3.11 is what is tested")
    return red("python", f"{full}: upstream's stack is installed on 3.11", "python3.11 -m venv .venv")


def system(name: str, processor: str, release: str) -> Finding:
    found = f"{name} on {processor}, {release}"
    if name != "Linux":
        return red("system", found, "the engines exist for Linux: a Linux machine, WSL 2 or a container")
    return fine("system", found) if processor == "x86_64" else remark("system", found, "x86_64 is what is tested")


def cores(have: int, quota: float | None) -> Finding:
    usable = have if quota is None else min(have, quota)
    found = f"{usable:g}" + (f" of {have}, the limit of this control group" if usable < have else "")
    return fine("cores", found) if usable >= 2 else remark("cores", found, "a run is several processes: slow")


def memory(total: int, limit: int | None, free: int) -> Finding:
    """Bytes of the machine, of the control group (None: no limit), and free."""
    limited = limit is not None and limit < total
    usable = min(total, limit) if limit is not None else total
    found = f"{usable / GIB:.1f} GiB" + (f" of {total / GIB:.1f}, the limit of this control group" if limited else "")
    found += f", {min(free, usable) / GIB:.1f} free"
    if usable < 7 * GIB:
        return red(
            "memory",
            found,
            "three policies on CPU take 11 GiB: raise the limit (docker run --memory=16g), or a larger machine",
        )
    if min(free, usable) < 6 * GIB:
        return remark("memory", found, "see who has it: ps aux --sort=-rss | head")
    return (
        fine("memory", found)
        if usable >= 11 * GIB
        else remark("memory", found, "the demo takes 11 GiB; fewer policies, less")
    )


def memory_limit(tree: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int | None:
    """The least limit on the way from our control group to the root, of either version; None without one."""
    found = _limits(tree, own, "memory", "memory.max", "memory.limit_in_bytes")
    values = [int(text) for text in found if text.isdigit()]
    return min(values, default=None)


def core_limit(tree: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores that our control group may use at a time (version 2); None without a limit."""
    pairs = [text.split() for text in _limits(tree, own, "cpu", "cpu.max", None)]
    return min((int(quota) / int(period) for quota, period in pairs if quota.isdigit()), default=None)


def _limits(tree: Path, own: Path, controller: str, new: str, old: str | None) -> list[str]:
    """Contents of a limit's files, from our group up; in a container the group's path is often not there, and the root is ours."""
    found = []
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
        found += [file.read_text().strip() for file in files if file.is_file()]
    return found


def shared_memory(free: int, device: str) -> Finding:
    found = f"{free / GIB:.1f} GiB free in /dev/shm"
    if free >= GIB:
        return fine("shared memory", found)
    cure = "docker run --shm-size=8g (or --ipc=host), or: mount -o remount,size=8g /dev/shm"
    if device == "cuda":  # 64 MiB is a container's default, and NCCL ends with "No space left on device"
        return red("shared memory", found, cure)
    return remark("shared memory", f"{found}: Ray keeps its objects on disk instead", cure)


def disk(what: str, folder: Path, free: int) -> Finding:
    found = f"{free / GIB:.0f} GiB free in {folder}"
    if free < GIB:
        cure = "export RAY_TMPDIR=/a/larger/disk" if what == "temporary files" else "free some, or start elsewhere"
        return red(what, found, f"{cure}; runs write records, weights and checkpoints")
    return fine(what, found) if free >= 5 * GIB else remark(what, found, "checkpoints of larger models will not fit")


def folders(device: str, models_from_hub: bool) -> list[Finding]:
    """The caches that a run writes to."""
    hub = os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache() / "huggingface") / "hub"
    places = [
        ("TORCH_EXTENSIONS_DIR", extensions(device), True, "DeepSpeed's operators"),
        ("RAY_TMPDIR", temporary(), True, "Ray's sessions"),
        ("HF_HOME", Path(hub), models_from_hub, "models and data sets of the hub"),
        ("XDG_CACHE_HOME", cache() / "openrlhf-marl", False, "tiny models"),
    ]
    problems = [
        red_if(used, "cache", f"{folder} ({what}): {problem}", f"export {name}=/a/folder/that/can/be/written")
        for name, folder, used, what in places
        if (problem := unwritable(folder))
    ]
    return problems or [fine("cache", f"writable: {', '.join(str(folder) for _, folder, _, _ in places)}")]


def cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def extensions(device: str) -> Path:
    """Where DeepSpeed's operators are built."""
    if device == "cpu":
        return Path(cpu.environment()["TORCH_EXTENSIONS_DIR"])
    return Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cache() / "torch_extensions")


def unwritable(folder: Path) -> str | None:
    """Why no file can be made in a folder, which may not exist yet; None where one can."""
    try:
        # Tried, because permissions are not all: read-only mounts, quotas, root.
        with tempfile.TemporaryFile(dir=existing(folder)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def existing(folder: Path) -> Path:
    """The folder itself, or the closest one around it that is there."""
    while not folder.exists():
        folder = folder.parent
    return folder


def network(device: str) -> list[Finding]:
    """Loopback: all processes of a run on one machine talk through it."""
    if problem := loopback():
        return [red("loopback", f"127.0.0.1: {problem}", "ip link set lo up; a firewall or sandbox may forbid sockets")]
    names = [name for _, name in socket.if_nameindex()]
    interface = cpu.environment()["GLOO_SOCKET_IFNAME"]
    if device == "cpu" and interface not in names:
        return [
            red(
                "loopback", f"no interface {interface!r}, among {', '.join(names)}", f"export GLOO_SOCKET_IFNAME={names[0]}"
            )
        ]
    findings = [fine("loopback", "ports can be bound and reached")]
    proxy = next((name for name in ("http_proxy", "https_proxy", "grpc_proxy") if os.environ.get(name)), None)
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if proxy and not any(word in exempt for word in ("127.0.0.1", "localhost", "*")):
        cure = "export no_proxy=localhost,127.0.0.1"
        findings.append(remark("loopback", f"{proxy} is set, and Ray's own connections may go through it", cure))
    return findings


def loopback() -> str | None:
    """Why two sockets cannot talk on this machine; None where they can."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), timeout=5) as client,
            server.accept()[0] as connection,
        ):
            client.sendall(b"x")
            return None if connection.recv(1) == b"x" else "nothing arrives"
    except OSError as error:
        return error.strerror or str(error)


def command() -> Finding:
    """Which program `openrlhf` starts."""
    first, here = shutil.which("openrlhf"), Path(sys.executable).parent
    if first is None:
        return remark("command", "no openrlhf on PATH", f"export PATH={here}:$PATH")
    text = Path(first).read_text(encoding="utf-8", errors="replace")
    sibling = here / "openrlhf"
    if (sibling.exists() and Path(first).samefile(sibling)) or ("marl_plugins" in text and str(here) in text):
        return fine("command", f"{first} is this one")
    whose = "another environment's" if "marl_plugins" in text else "not of this package"
    return red("command", f"{first} is first on PATH and {whose}", f"export PATH={here}:$PATH, or use openrlhf-marl")
