"""Checkpoints of one step: every policy, the plugins' state, and a manifest that makes them one.

    <ckpt.path>/manifest.json                     names the last complete step; renamed into place when all is on disk
    <ckpt.path>/<policy>/_actor/global_step<N>/   DeepSpeed's own checkpoint: weights, optimiser, learning-rate schedule
    <ckpt.path>/<policy>/_critic/global_step<N>/  its critic's, where it has one

A step without a manifest does not exist: whatever a killed run left half-written is not named, and is overwritten. Older
steps are deleted after the new manifest is in place, never the one that it names. The place in the data and all seeds follow
from the step (core/tasks.py, core/seeds.py), so no random state needs to be kept.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError

SCHEMA_VERSION = 1


def tag(step: int) -> str:
    """DeepSpeed's tag of a step, as upstream names them."""
    return f"global_step{step}"


class Checkpoints:
    """The checkpoints of one run below `--ckpt.path`.

    Args:
        keep: Number of complete steps that are kept.
        critics: Whether the run's policies have critics.
    """

    def __init__(self, folder: Path, keep: int, critics: bool = False):
        self.folder = folder
        self.keep = max(1, keep)
        self.parts = ("_actor", "_critic") if critics else ("_actor",)
        self.manifest_path = folder / "manifest.json"

    def manifest(self) -> dict[str, Any] | None:
        """The last complete step, or None.

        Raises:
            ConfigurationError: A manifest that cannot be read, or of another schema.
        """
        try:
            manifest: dict[str, Any] = json.loads(self.manifest_path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"{self.manifest_path}: cannot be read: {error}") from None
        if manifest.get("schema") != SCHEMA_VERSION:
            raise ConfigurationError(
                f"{self.manifest_path}: schema {manifest.get('schema')!r}, this release reads {SCHEMA_VERSION}; resume with "
                "the release that wrote it, or choose another --ckpt.path"
            )
        return manifest

    def open(self, resume: bool, fingerprint: Mapping[str, Any]) -> dict[str, Any] | None:
        """Before any process starts: the manifest to resume from, with every policy's `latest` pointed at its step.

        Raises:
            ConfigurationError: There are checkpoints and resuming was not asked for; or they are of a run that differs in
                what a resumed run must have in common; or parts of the step are missing.
        """
        manifest = self.manifest()
        if manifest is None:
            for latest in self.folder.glob("*/_*/latest"):  # left by a run that was killed before its first manifest
                latest.unlink()
            return None
        if not resume:
            raise ConfigurationError(
                f"--ckpt.path {self.folder} holds a run saved at step {manifest['step']}; resume with --ckpt.load_enable, or "
                "choose another folder"
            )
        # JSON has no tuples and only string keys: compare like with like.
        mine = json.loads(json.dumps(fingerprint))
        problems = [
            f"--ckpt.load_enable: {key} was {manifest['run'].get(key)!r} when the run was saved and is {value!r} now"
            for key, value in mine.items()
            if manifest["run"].get(key) != value
        ]
        for part in self._of(manifest["policies"]):
            if not (part / tag(manifest["step"])).is_dir():
                problems.append(f"--ckpt.load_enable: {part / tag(manifest['step'])} is missing")
        if problems:
            raise ConfigurationError(problems)
        for part in self._of(manifest["policies"]):
            replace_text(part / "latest", tag(manifest["step"]))
        return manifest

    def commit(self, step: int, policies: Mapping[str, int], run: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """Name a step whose parts are all saved as the last complete one, then delete what is older than `keep` steps.

        Args:
            policies: The version of each policy's weights.
        """
        manifest = {
            "schema": SCHEMA_VERSION,
            "step": step,
            "policies": dict(policies),
            "run": run,
            "state": state,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        replace_text(self.manifest_path, json.dumps(manifest, indent=2) + "\n")
        for part in self._of(policies):
            names = [re.fullmatch(r"global_step(\d+)", p.name) for p in part.iterdir() if p.is_dir()]
            saved = sorted(int(m.group(1)) for m in names if m)
            for old in saved[: -self.keep]:
                if old < step:
                    shutil.rmtree(part / tag(old))
                    shutil.rmtree(part.parent / f"{tag(old)}_hf", ignore_errors=True)

    def _of(self, policies: Iterable[str]) -> list[Path]:
        """Folders of DeepSpeed checkpoints of some policies."""
        return [self.folder / policy / part for policy in policies for part in self.parts]


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
