"""The machine: Python, processor, memory, disk, folders, and proxies."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import tempfile
from pathlib import Path

from marl_plugins.core.files import cache_folder
from marl_plugins.core.findings import Finding, error, error_if, note, ok
from marl_plugins.core.machine_limits import read_memory_limit
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.hosts.prebuild import extensions_folder

GIB = 2**30


MOST_RAY_BYTES = 22
"""Bytes of the path of a folder for Ray: 85 more are
`/marl_XXXXXXXX/ray/session_DATE_TIME_PID/sockets/plasma_store`."""


def check_machine(device: str) -> list[Finding]:
    """Checks what no package can fix."""
    kib = dict(re.findall(r"(\w+): *(\d+)", Path("/proc/meminfo").read_text()))
    # with the pages that can be reclaimed
    total, free = (1024 * int(kib[name]) for name in ("MemTotal", "MemAvailable"))
    shm = Path("/dev/shm")
    return [
        check_python(sys.version_info[:2], platform.python_version()),
        check_system(platform.system(), platform.machine(), platform.release()),
        check_memory(total, read_memory_limit(), free),
        *([check_shared_memory(shutil.disk_usage(shm).free, device)] if shm.is_dir() else []),
        check_disk("disk", Path.cwd(), shutil.disk_usage(Path.cwd()).free),
        check_disk(
            "temporary files", ray_folder(), shutil.disk_usage(nearest_existing(ray_folder())).free
        ),
    ]


def ray_folder() -> Path:
    """Returns the folder in which Ray keeps its sessions and spilled objects."""
    return Path(os.environ.get("RAY_TMPDIR") or "/tmp")


def check_python(version: tuple[int, ...], full: str) -> Finding:
    if version in ((3, 11), (3, 12)):
        return ok("python", f"{full}, {sys.executable}")
    return error(
        "python", f"{full}: upstream's stack requires 3.11 or 3.12", "python3.11 -m venv .venv"
    )


def check_system(name: str, processor: str, release: str) -> Finding:
    text = f"{name} on {processor}, {release}"
    if name != "Linux":
        return error(
            "system", text, "the engines require Linux: use a Linux machine, WSL 2 or a container"
        )
    return ok("system", text) if processor == "x86_64" else note("system", text, "x86_64 is tested")


def check_memory(total: int, limit: int | None, free: int) -> Finding:
    """Returns sizes in bytes; `limit` is the control group's, None without one."""
    limited = limit is not None and limit < total
    usable = min(total, limit) if limit is not None else total
    text = f"{usable / GIB:.1f} GiB" + (
        f" of {total / GIB:.1f}, the limit of this control group" if limited else ""
    )
    text += f", {min(free, usable) / GIB:.1f} free"
    if usable < 7 * GIB:
        return error(
            "memory",
            text,
            "three policies on CPU take 11 GiB: raise the limit (docker run --memory=16g), or use "
            "a larger machine",
        )
    if min(free, usable) < 6 * GIB:
        return note("memory", text, "find what uses it: ps aux --sort=-rss | head")
    return (
        ok("memory", text)
        if usable >= 11 * GIB
        else note("memory", text, "the demo takes 11 GiB; fewer policies take less")
    )


def check_shared_memory(free: int, device: str) -> Finding:
    text = f"{free / GIB:.1f} GiB free in /dev/shm"
    if free >= GIB:
        return ok("shared memory", text)
    fix = "docker run --shm-size=8g (or --ipc=host), or: mount -o remount,size=8g /dev/shm"
    if (
        device == "cuda"
    ):  # with 64 MiB, a container's default, NCCL fails with "No space left on device"
        return error("shared memory", text, fix)
    return note("shared memory", f"{text}: Ray keeps its objects on disk instead", fix)


def check_disk(what: str, folder: Path, free: int) -> Finding:
    text = f"{free / GIB:.0f} GiB free in {folder}"
    if free < GIB:
        fix = (
            "export RAY_TMPDIR=/a/larger/disk"
            if what == "temporary files"
            else "free some, or start in another folder"
        )
        return error(what, text, f"{fix}; runs write records, weights and checkpoints")
    return (
        ok(what, text)
        if free >= 5 * GIB
        else note(what, text, "checkpoints of larger models will not fit")
    )


def check_caches(device: str, models_from_hub: bool) -> list[Finding]:
    """Returns the folders that a run writes to."""
    hub = (
        os.environ.get("HF_HUB_CACHE")
        or Path(os.environ.get("HF_HOME") or cache_folder() / "huggingface") / "hub"
    )
    places = [
        ("TORCH_EXTENSIONS_DIR", extensions_folder(device), True, "DeepSpeed's operators"),
        ("RAY_TMPDIR", ray_folder(), True, "Ray's sessions"),
        ("HF_HOME", Path(hub), models_from_hub, "models and data sets from the hub"),
        ("XDG_CACHE_HOME", cache_folder() / "openrlhf-marl", False, "tiny models"),
    ]
    if device == "cpu":
        compiled = Path(cpu.environment()["TORCHINDUCTOR_CACHE_DIR"])
        places.append(("TORCHINDUCTOR_CACHE_DIR", compiled, True, "compiled functions"))
    problems = [
        error_if(
            used,
            "cache",
            f"{folder} ({what}): {problem}",
            f"export {name}=/a/folder/that/can/be/written",
        )
        for name, folder, used, what in places
        if (
            problem := why_unwritable(folder)
            or (why_not_rays(folder) if name == "RAY_TMPDIR" else None)
        )
    ]
    return problems or [
        ok("cache", f"writable: {', '.join(str(folder) for _, folder, _, _ in places)}")
    ]


def why_unwritable(folder: Path) -> str | None:
    """Returns why no file can be created in a folder, which may not exist yet; None if one can."""
    try:
        # Permissions alone do not tell: read-only mounts, quotas, root.
        with tempfile.TemporaryFile(dir=nearest_existing(folder)):
            return None
    except OSError as error:
        return error.strerror or str(error)


def why_not_rays(folder: Path) -> str | None:
    """Returns why Ray cannot have its sockets below a folder; None if it can."""
    if not folder.is_dir():
        return "no such folder"
    if len(os.fsencode(folder)) > MOST_RAY_BYTES:
        return (
            f"longer than {MOST_RAY_BYTES} bytes, and paths of Ray's sockets below it have at "
            "most 107"
        )
    return None


def nearest_existing(folder: Path) -> Path:
    """Returns the folder itself, or its closest existing parent."""
    while not os.path.exists(folder):  # also what this user may not see
        folder = folder.parent
    return folder


def check_proxy() -> list[Finding]:
    """Notes a proxy that may capture connections on this machine."""
    proxies = ("http_proxy", "https_proxy", "grpc_proxy")
    proxy = next((name for name in proxies if os.environ.get(name)), None)
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if not proxy or any(word in exempt for word in ("127.0.0.1", "localhost", "*")):
        return []
    fix = "export no_proxy=localhost,127.0.0.1"
    return [note("proxy", f"{proxy} is set and may capture Ray's own connections", fix)]
