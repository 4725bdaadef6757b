"""The installed upstream: its release, the seams that this package depends on, and DeepSpeed's
operators."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from glob import glob
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.engine.hosts import cpu, upstream_cli
from marl_plugins.engine.hosts.prebuild import OPERATORS, extensions_folder
from marl_plugins.engine.hosts.releases import TRAINED, known, refusal, standing
from marl_plugins.engine.hosts.seams import check_seams, seams_of

REPAIR = f"pip install --no-deps openrlhf=={TRAINED}, or a newer openrlhf-marl"
LIBRARIES = {"cpu": tuple(OPERATORS.values()), "cuda": (OPERATORS["FusedAdamBuilder"],)}
"""The libraries of DeepSpeed's operators that runs on a device load."""


def check_upstream() -> list[Finding]:
    try:
        root = upstream_cli.upstream_root()
    except ConfigurationError as missing:
        return [error("openrlhf", "not installed", str(missing))]
    version = upstream_cli.upstream_version()
    text = f"{version} in {root.parent}"
    if refused := refusal(version):
        release = error("openrlhf", text, str(refused))
    elif version == TRAINED:
        release = ok("openrlhf", text)
    else:
        release = note(
            "openrlhf",
            f"{text}; {standing(version)}",
            "" if known(version) else f"openrlhf compat {root.parent} --tests",
        )
    return [release, *report_seams(root, version)]


def report_seams(root: Path, version: str) -> list[Finding]:
    table = seams_of(version)
    problems = check_seams(root, table)
    if not problems:
        return [
            ok(
                "seams",
                f"all {len(table)} places of upstream that this package depends on are as expected",
            )
        ]
    return [error("seams", problem, REPAIR) for problem in problems]


def check_operators(device: str) -> Finding:
    """Checks DeepSpeed's C++ operators: compiled on first use, checked by ninja on every later
    use."""
    wanted = os.environ.get("TORCH_CUDA_ARCH_LIST", "")
    if device == "cuda" and (numbers := re.sub(r"(\d)[a-z]", r"\1", wanted)) != wanted:
        text = f"DeepSpeed cannot read the letters in TORCH_CUDA_ARCH_LIST={wanted}"
        return error("operators", text, f"export TORCH_CUDA_ARCH_LIST={shlex.quote(numbers)}")
    folder = extensions_folder(device)
    missing = [
        name
        for name in LIBRARIES[device]
        if not glob(f"**/{name}/*.so", root_dir=folder, recursive=True)
    ]
    state = f"{', '.join(missing)} not built" if missing else f"built in {folder}"
    tools = ["ninja"]
    if missing:
        tools += ["g++"] if device == "cpu" else ["g++", "nvcc"]
    path = cpu.environment()["PATH"] if device == "cpu" else None
    absent = [
        tool
        for tool in tools
        if not shutil.which(tool, path=path) and not (tool == "nvcc" and has_nvcc())
    ]
    if absent:
        text = f"{state}; no {' and no '.join(absent)} on PATH"
        return error("operators", text, _fix_for_tools(absent))
    if not missing:
        return ok("operators", state)
    fix = "the first run takes a minute longer"
    if device == "cpu":
        fix = f"{fix}; or: python -m marl_plugins.engine.hosts.prebuild"
    return note("operators", state, fix)


def has_nvcc() -> bool:
    """Returns whether CUDA's compiler is where torch looks for it if it is not on PATH."""
    return (Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc").is_file()


def _fix_for_tools(absent: list[str]) -> str:
    here = Path(sys.executable).parent
    if absent == ["ninja"] and (here / "ninja").is_file():
        return f"export PATH={here}:$PATH"
    fixes = {
        "ninja": "pip install ninja",
        "g++": "apt-get install g++",
        "nvcc": "install the CUDA toolkit that torch is built for",
    }
    return " && ".join(fixes[tool] for tool in absent)
