"""The GPUs according to `nvidia-smi`; torch is not imported."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.core.findings import Finding, error, error_if, note, ok
from marl_plugins.engine.hosts import cpu

NVIDIA_SMI_SECONDS = 30.0
"""Without persistence mode the first call is slow."""


@dataclass(frozen=True)
class Card:
    """One GPU; memory in MiB."""

    name: str
    memory: int
    used: int
    driver: str


@dataclass(frozen=True)
class Cards:
    """All GPUs, the newest CUDA version that the driver supports, and the problem if `nvidia-smi`
    failed."""

    cards: Sequence[Card] = ()
    cuda: str | None = None
    problem: str | None = None
    visible: int = 0
    """Number of GPUs that `CUDA_VISIBLE_DEVICES` leaves."""


def query_gpus() -> Cards:
    """Queries the driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Cards()
    query = [
        program,
        "--query-gpu=name,memory.total,memory.used,driver_version",
        "--format=csv,noheader,nounits",
    ]
    try:
        listed = subprocess.run(query, capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS)
        header = subprocess.run(
            [program], capture_output=True, text=True, timeout=NVIDIA_SMI_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Cards(problem=f"nvidia-smi: {error}")
    rows = [[cell.strip() for cell in row] for row in csv.reader(listed.stdout.splitlines())]
    if listed.returncode or any(len(row) != 4 for row in rows):
        output = (listed.stdout + listed.stderr).strip().splitlines() or ["no output"]
        return Cards(problem=f"nvidia-smi ended with {listed.returncode}: {output[0]}")
    cards = [
        Card(name, _parse_number(memory), _parse_number(used), driver)
        for name, memory, used, driver in rows
    ]
    cuda = re.search(r"CUDA Version: *([\d.]+)", header.stdout)
    return Cards(cards, cuda.group(1) if cuda else None, visible=count_visible(len(cards)))


def _parse_number(text: str) -> int:
    """A cell as a number; `[N/A]`, where the GPU shares the processor's memory, is 0."""
    return int(text) if text.isdigit() else 0


def count_visible(count: int) -> int:
    """Returns how many of `count` GPUs `CUDA_VISIBLE_DEVICES` leaves; CUDA ends the list at the
    first invalid entry."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return count
    seen = 0
    for word in chosen.split(","):
        if not word.strip() or (word.strip().lstrip("-").isdigit() and not 0 <= int(word) < count):
            break
        seen += 1
    return min(seen, count)


def check_gpus(cards: Cards, device: str) -> list[Finding]:
    if cards.problem:
        return [
            error_if(
                device != "cpu",
                "GPUs",
                cards.problem,
                "reboot, or reinstall the driver; or use the CPU: export MARL_PLUGINS_DEVICE=cpu",
            )
        ]
    if device == "cpu":
        if not cards.cards:
            return [note("GPUs", "none; runs use logical GPUs on the CPU")]
        why = cpu.DEVICE if os.environ.get(cpu.DEVICE) else "CUDA_VISIBLE_DEVICES"
        return [
            note("GPUs", f"{len(cards.cards)} found but not used because of ${why}", f"unset {why}")
        ]
    if not cards.cards:
        if Path("/dev/kfd").exists():
            return [note("GPUs", "AMD", "not tested with this package")]
        return [
            note(
                "GPUs",
                "unknown: a device exists, but nvidia-smi is missing",
                "apt-get install nvidia-utils",
            )
        ]
    findings = []
    for number, card in enumerate(cards.cards):
        text = (
            f"{number}: {card.name}, {card.memory / 1024:.0f} GiB, driver {card.driver}, CUDA "
            f"up to {cards.cuda or '?'}"
        )
        if card.used > 0.05 * card.memory:
            findings.append(
                note(
                    "GPUs",
                    f"{text}; {card.used / 1024:.1f} GiB are in use",
                    "nvidia-smi shows by which processes",
                )
            )
        else:
            findings.append(ok("GPUs", text))
    if cards.visible == 0:
        findings.append(
            error("GPUs", "CUDA_VISIBLE_DEVICES hides all of them", "unset CUDA_VISIBLE_DEVICES")
        )
    return findings
