"""The GPUs, as `nvidia-smi` shows them; torch is not imported for it."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from marl_plugins.core.findings import Finding, fine, red, remark
from marl_plugins.hosts import cpu

SECONDS = 30.0
"""The first call on a machine without persistence mode takes some."""


@dataclass(frozen=True)
class Card:
    """One GPU; memory in MiB."""

    name: str
    memory: int
    used: int
    driver: str


@dataclass(frozen=True)
class Cards:
    """All of them, the newest CUDA that the driver knows, and why nothing was found where that is a fault."""

    cards: Sequence[Card] = ()
    cuda: str | None = None
    problem: str | None = None
    visible: int = field(default=0)
    """So many may be used: `CUDA_VISIBLE_DEVICES`."""


def look() -> Cards:
    """Ask the driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Cards()
    query = [program, "--query-gpu=name,memory.total,memory.used,driver_version", "--format=csv,noheader,nounits"]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=SECONDS)
        header = subprocess.run([program], capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        return Cards(problem=f"nvidia-smi: {error}")
    rows = [[cell.strip() for cell in row] for row in csv.reader(listed.stdout.splitlines())]
    if listed.returncode or any(len(row) != 4 for row in rows):
        said = (listed.stdout + listed.stderr).strip().splitlines() or ["it said nothing"]
        return Cards(problem=f"nvidia-smi ended with {listed.returncode}: {said[0]}")
    cards = [Card(name, _number(memory), _number(used), driver) for name, memory, used, driver in rows]
    cuda = re.search(r"CUDA Version: *([\d.]+)", header.stdout)
    return Cards(cards, cuda.group(1) if cuda else None, visible=visible(len(cards)))


def _number(text: str) -> int:
    """A cell; `[N/A]` on machines whose GPU shares the processor's memory."""
    return int(text) if text.isdigit() else 0


def visible(count: int) -> int:
    """How many of so many GPUs `CUDA_VISIBLE_DEVICES` leaves; CUDA ends the list at the first wrong entry."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    seen = 0
    for word in chosen.split(","):
        if not word.strip() or (word.strip().lstrip("-").isdigit() and not 0 <= int(word) < count):
            break
        seen += 1
    return min(seen, count)


def gpus(found: Cards, device: str) -> list[Finding]:
    if found.problem:
        return [red("GPUs", found.problem, "reboot, or install the driver again; MARL_PLUGINS_DEVICE=cpu does without")]
    if device == "cpu":
        if not found.cards:
            return [remark("GPUs", "none: logical ones on the CPU")]
        why = cpu.DEVICE if os.environ.get(cpu.DEVICE) else "CUDA_VISIBLE_DEVICES"
        return [remark("GPUs", f"{len(found.cards)} are here and not used: ${why} says so", f"unset {why}")]
    if not found.cards:
        if Path("/dev/kfd").exists():
            return [remark("GPUs", "AMD's", "nobody has tried this package on them")]
        return [remark("GPUs", "not known: a device is there and nvidia-smi is not", "apt-get install nvidia-utils")]
    findings = []
    for number, card in enumerate(found.cards):
        text = f"{number}: {card.name}, {card.memory / 1024:.0f} GiB, driver {card.driver}, CUDA up to {found.cuda or '?'}"
        if card.used > 0.05 * card.memory:
            findings.append(remark("GPUs", f"{text}; {card.used / 1024:.1f} GiB are taken", "nvidia-smi says by whom"))
        else:
            findings.append(fine("GPUs", text))
    if found.visible == 0:
        findings.append(red("GPUs", "CUDA_VISIBLE_DEVICES hides all of them", "unset CUDA_VISIBLE_DEVICES"))
    elif found.visible < len(found.cards):
        findings.append(remark("GPUs", f"CUDA_VISIBLE_DEVICES leaves {found.visible} of {len(found.cards)}"))
    return findings
