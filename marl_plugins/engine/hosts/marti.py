"""Finds out which MARTI a checkout is, and which of the defects that patches fix it has.

MARTI-v2 (package `marti`) is a fork of OpenRLHF with its own multi-agent trainer. MARTI v0.1, on
which MAPPA's repository is built, is another program with the same name; only its file formats
matter here (`openrlhf recipes import`). Nothing of a checkout is run.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.engine.hosts.patches import Patch, load_series

V2, V01, MAPPA = "marti v2", "marti v0.1", "mappa"


def recognise(root: Path) -> str | None:
    """Returns `V2`, `V01` or `MAPPA` by layout and `version.txt`; None for anything else."""
    package = _package(root)
    version = package.parent / "version.txt"
    stated = ""
    if version.is_file():
        stated = version.read_text(encoding="utf-8", errors="replace").strip()
    if (package / "trainer/multi_agent_ppotrainer.py").is_file() and (
        package / "agent_workflows"
    ).is_dir():
        return V2 if not stated or stated.split(".")[0] == "2" else None
    if (package / "controllers/multi_agent_controller.py").is_file() and (
        package / "worlds"
    ).is_dir():
        return MAPPA if (package / "verifiers/coach").is_dir() else V01
    return None


def check(root: Path) -> list[Finding]:
    """Returns all that can be found out without running a checkout that `recognise` knows; `root`
    contains the package `marti`, or is it."""
    host, package = recognise(root), _package(root)
    if host != V2:
        name = "MAPPA's repository, built on MARTI v0.1" if host == MAPPA else "MARTI v0.1"
        text = (
            f"{name}: only importing is supported; its trainer shares nothing with MARTI-v2's, "
            "so nothing is checked"
        )
        return [note("marti", text, "openrlhf recipes import CONFIG.yaml --to FOLDER")]
    series = next(series for series in load_series() if series.title == V2)
    defects = [_check_defect(patch, package.parent) for patch in series.patches]
    return [ok("marti", f"MARTI-v2 in {package}"), *defects]


def _package(root: Path) -> Path:
    """The package folder of a checkout."""
    return root if root.name == "marti" else root / "marti"


def _check_defect(patch: Patch, checkout: Path) -> Finding:
    """A patch that git can take back is applied, one that it can apply is needed."""
    name, _, symptom = patch.title.partition(": ")
    state = patch.state(checkout)
    if state == "applied":
        return ok(name, f"fixed; it was: {symptom}")
    if state == "other":
        files = ", ".join(patch.files)
        return note(name, f"cannot tell whether {symptom}: {files} differ from the known release")
    fix = f"openrlhf patch apply {name} --to {shlex.quote(str(checkout))}"
    return error(name, f"{symptom} ({patch.files[0]})", fix)
