"""Checkpoints of one step: every policy, the plugins' state, and a manifest that makes them one.

    <ckpt.path>/manifest.json                     names the last complete step; renamed into place when all is on disk
    <ckpt.path>/<policy>/_actor/global_step<N>/   DeepSpeed's own checkpoint: weights, optimiser, learning-rate schedule
    <ckpt.path>/<policy>/_critic/global_step<N>/  its critic's, where it has one

A step without a manifest does not exist: whatever a killed run left half-written is not named, and is overwritten. Older
steps are deleted after the new manifest is in place, never the one that it names. `changes` in the manifest lists what was
changed when the run was resumed (`--resume_with_changes`), and after which step. The place in the data and all seeds follow
from the step (core/tasks.py, core/seeds.py), so no random state needs to be kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.plan.resume import SCHEMA_VERSION, differences, missing_parts, read_manifest, saved_folders, tag, taken


class Checkpoints:
    """The checkpoints of one run below `--ckpt.path`.

    Args:
        keep: Number of complete steps that are kept.
        run: The run's fingerprint (plan/fingerprint.py), taken when it started.
        output: The run's folder, for the hint how to resume it.
        critics: Whether the run's policies have critics.
    """

    def __init__(self, folder: Path, keep: int, run: Mapping[str, Any], critics: bool = False, output: Path = Path()):
        self.folder = folder
        self.keep = max(1, keep)
        self.run = run
        self.critics = critics
        self.output = output
        self.changes: list[dict[str, Any]] = []
        self.new_changes: list[str] = []
        self.manifest_path = folder / "manifest.json"

    def manifest(self) -> dict[str, Any] | None:
        """The last complete step, or None; see `read_manifest`."""
        return read_manifest(self.folder)

    def open(self, resume: bool, with_changes: bool = False) -> dict[str, Any] | None:
        """Before any process starts: the manifest to resume from, with every policy's `latest` pointed at its step.

        Args:
            with_changes: Accept differences that a resumed run may have; they are kept in `changes`.

        Raises:
            ConfigurationError: There are checkpoints and resuming was not asked for; or they are of a run that differs in
                what a resumed run must have in common; or parts of the step are missing.
        """
        manifest = self.manifest()
        if manifest is None:
            for latest in self.folder.glob("*/_*/latest"):  # left by a run that was killed before its first manifest
                latest.unlink()
            return None
        step = manifest["step"]
        if not resume:
            raise ConfigurationError(taken(self.folder, step, self.output))
        folders = saved_folders(self.folder, manifest["policies"], self.critics)
        if missing := missing_parts(folders, step):
            raise ConfigurationError(missing)
        changes = differences(step, manifest["run"], self.run, with_changes)
        self.changes = [*manifest.get("changes", []), *([{"after_step": step, "changes": changes}] if changes else [])]
        self.new_changes = changes
        for part in folders:
            replace_text(part / "latest", tag(step))
        return manifest

    def commit(self, step: int, policies: Mapping[str, int], state: Mapping[str, Any]) -> None:
        """Name a step whose parts are all saved as the last complete one, then delete what is older than `keep` steps.

        Args:
            policies: The version of each policy's weights.
        """
        manifest = {
            "schema": SCHEMA_VERSION,
            "step": step,
            "policies": dict(policies),
            "run": self.run,
            "changes": self.changes,
            "state": state,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.manifest_path, json.dumps(manifest, indent=2) + "\n")
        for part in saved_folders(self.folder, policies, self.critics):
            names = [re.fullmatch(r"global_step(\d+)", p.name) for p in part.iterdir() if p.is_dir()]
            saved = sorted(int(m.group(1)) for m in names if m)
            for old in saved[: -self.keep]:
                if old < step:
                    shutil.rmtree(part / tag(old))
                    shutil.rmtree(part.parent / f"{tag(old)}_hf", ignore_errors=True)


def replace_text(path: Path, text: str) -> None:
    """Write a file so that at any moment it holds the old text or the new one, also after a power cut."""
    fresh = path.with_name(path.name + ".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
