"""Upstream as it is installed: its release, the places of it that are relied on, and DeepSpeed's operators."""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from marl_plugins.commands.doctor.machine import extensions
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, fine, red, remark
from marl_plugins.hosts import cpu, upstream_cli
from marl_plugins.hosts.prebuild import STALE
from marl_plugins.hosts.releases import TRAINED, known, refusal, standing
from marl_plugins.hosts.seams import check_seams, seams_of

OPERATORS = {"cpu": ("fused_adam", "deepspeed_shm_comm"), "cuda": ("fused_adam",)}


def upstream() -> list[Finding]:
    try:
        root = upstream_cli.upstream_root()
    except ConfigurationError as error:
        return [red("openrlhf", "not installed", str(error))]
    version = upstream_cli.upstream_version()
    found = f"{version} in {root.parent}"
    if refused := refusal(version):
        release = red("openrlhf", found, refused)
    elif version == TRAINED:
        release = fine("openrlhf", found)
    else:
        release = remark(
            "openrlhf", f"{found}; {standing(version)}", "" if known(version) else f"openrlhf compat {root.parent} --tests"
        )
    return [release, *seams(root, version)]


def seams(root: Path, version: str) -> list[Finding]:
    table = seams_of(version)
    problems = check_seams(root, table)
    if not problems:
        return [fine("seams", f"all {len(table)} places of upstream that are relied on are as expected")]
    cure = f"pip install --no-deps openrlhf=={TRAINED}, or a release of openrlhf-marl for yours"
    return [red("seams", problem, cure) for problem in problems]


def operators(device: str) -> list[Finding]:
    """DeepSpeed's C++ operators: compiled on first use, and checked by ninja at every later one."""
    folder = extensions(device)
    locks = stale_locks(folder)
    missing = [name for name in OPERATORS[device] if not list(folder.glob(f"**/{name}/*.so"))]
    tools = ["ninja", *(("g++",) if missing else ()), *(("nvcc",) if missing and device != "cpu" else ())]
    path = cpu.environment()["PATH"] if device == "cpu" else None
    lacking = [tool for tool in tools if not shutil.which(tool, path=path) and not (tool == "nvcc" and nvcc())]
    if lacking:
        state = f"{', '.join(missing)} not built" if missing else f"built in {folder}"
        return [*locks, red("operators", f"{state}; no {' and no '.join(lacking)} on PATH", _tools(lacking))]
    if missing:
        cure = "the first run takes a minute longer; or: python -m marl_plugins.hosts.prebuild"
        return [
            *locks,
            remark("operators", f"{', '.join(missing)} not built", cure if device == "cpu" else cure.partition(";")[0]),
        ]
    return [*locks, fine("operators", f"built in {folder}")]


def nvcc() -> bool:
    """Whether CUDA's compiler is where torch looks for it beside PATH."""
    return (Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc").is_file()


def _tools(lacking: list[str]) -> str:
    here = Path(sys.executable).parent
    if lacking == ["ninja"] and (here / "ninja").is_file():
        return f"export PATH={here}:$PATH"
    cures = {
        "ninja": "pip install ninja",
        "g++": "apt-get install g++",
        "nvcc": "install the CUDA toolkit that torch is built for",
    }
    return " && ".join(cures[tool] for tool in lacking)


def stale_locks(folder: Path) -> list[Finding]:
    """Locks of builds: everyone who loads the operator waits for them, for ever where the build was killed."""
    findings = []
    for lock in sorted(folder.glob("**/lock")):
        age = time.time() - lock.stat().st_mtime
        if age > STALE:
            findings.append(
                red(
                    "operators", f"{lock} is left from a build that is gone: a run would wait for it for ever", f"rm {lock}"
                )
            )
        elif age > 10:
            findings.append(
                remark(
                    "operators", f"{lock}: being built for {age:.0f} s", "wait for it; nothing else can load it meanwhile"
                )
            )
    return findings
