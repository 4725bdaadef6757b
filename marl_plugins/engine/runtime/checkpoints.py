"""Checkpoints of one step: every policy, the plugins' state, and a manifest that makes them one.

    <ckpt.path>/manifest.json                     names the last complete step; renamed into place
        when all is on disk
    <ckpt.path>/manifest-<N>.json                 copies of those of the steps that are kept
    <ckpt.path>/<policy>/_actor/global_step<N>/   DeepSpeed's own checkpoint: weights, optimiser,
        learning-rate schedule
    <ckpt.path>/<policy>/_critic/global_step<N>/  its critic's, where it has one
    <ckpt.path>/...                               files of plugins (`marl_files`), kept for as long
        as a step names them

A step without a manifest does not exist: whatever a killed run left half-written is not named, and
is overwritten. The manifest lists every file of the step with its size and digest, which are
checked before a run is resumed. Older steps are deleted after the new manifest is in place, never
the one that it names, nor the best one (engine/records/best.py). `changes` in the manifest lists
what was changed when the run was resumed (`--resume_with_changes`), and after which step. The place
in the data and all seeds follow from the step (core/recipe/tasks.py, core/seeds.py), so no random
state needs to be kept.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.files import open_file, read_bytes, replace_text, sync
from marl_plugins.core.problems import Problem, at, first_of
from marl_plugins.engine.plan.fingerprint import compared
from marl_plugins.engine.plan.resume import (
    MANIFEST,
    SCHEMA_VERSION,
    damaged,
    differences,
    how_to_resume,
    manifest_of,
    missing_parts,
    named_files,
    read_manifest,
    saved_folders,
    saved_steps,
    sealed,
    tag,
    taken,
)
from marl_plugins.engine.records.write import writing

T = TypeVar("T")
DIGEST_THREADS = 8
"""Number of files whose digests are computed at the same time."""


class Checkpoints:
    """The checkpoints of one run below `--ckpt.path`.

    Args:
        keep: Number of complete steps that are kept.
        run: The run's fingerprint (engine/plan/fingerprint.py), taken when it started.
        output: The run's folder, for the hint how to resume it.
        critics: Whether the run's policies have critics.
    """

    def __init__(
        self,
        folder: Path,
        keep: int,
        run: Mapping[str, Any],
        critics: bool = False,
        output: Path = Path(),
    ):
        self.folder = folder
        self.keep = max(1, keep)
        self.run = run
        self.critics = critics
        self.output = output
        self.changes: list[dict[str, Any]] = []
        self.new_changes: list[str] = []
        self.manifest_path = folder / MANIFEST
        self.last_step: int | None = None
        self._seen: bytes | None = None

    def open(self, resume: bool, with_changes: bool = False) -> dict[str, Any] | None:
        """Returns, before any process starts, the manifest to resume from, with every policy's
        `latest` pointed at its step.

        Args:
            with_changes: Accept differences that a resumed run may have; they are kept in
                `changes`.

        Raises:
            ConfigurationError: There are checkpoints and resuming was not asked for; or they are of
                a run that differs in what a resumed run must have in common; parts of the step are
                missing or damaged; or the folder cannot be written.
        """
        manifest = read_manifest(self.folder)
        if manifest is None:
            with self._writing():
                for latest in self.folder.glob(
                    "*/_*/latest"
                ):  # left by a run that was killed before its first manifest
                    latest.unlink()
            return None
        step = manifest["step"]
        if not resume:
            raise ConfigurationError(taken(self.folder, step, self.output))
        if missing := missing_parts(self.folder, manifest, self.critics):
            raise ConfigurationError(missing)
        changes = differences(step, manifest["run"], compared(self.run), with_changes)
        if broken := broken_files(self.folder, manifest):
            raise ConfigurationError(
                [*first_of(broken, self.folder), damaged(self.folder, step, self.critics)]
            )
        self.changes = [
            *manifest.get("changes", []),
            *([{"after_step": step, "changes": changes}] if changes else []),
        ]
        self.new_changes = changes
        with self._writing():
            for part in saved_folders(self.folder, manifest["policies"], self.critics):
                replace_text(part / "latest", tag(step))
            self.last_step, self._seen = step, read_bytes(self.manifest_path)
            if step not in saved_steps(self.folder):  # of a run killed between the two files
                replace_text(manifest_of(self.folder, step), self._seen.decode("utf-8"))
        return manifest

    @contextmanager
    def saving(self, step: int) -> Iterator[None]:
        """Surrounds the work of saving a step.

        Raises:
            RunEnded: Another run has saved here meanwhile, or something could not be written.
        """
        self.check_ours()
        with writing(f"step {step}", self.folder):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                Problem(
                    "resume.unwritable",
                    at(flag="ckpt.path"),
                    f"{self.folder}: cannot be written: {error.strerror}",
                )
            ) from None

    def commit(
        self,
        step: int,
        policies: Mapping[str, int],
        state: Mapping[str, Any],
        files: Iterable[Path] = (),
        best: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Makes a step whose parts are all saved the last complete one, then deletes what is older
        than `keep` steps.

        Waits until all that was saved is on disk, and reads it for the digests; to be called in a
        thread of its own.

        Args:
            policies: The version of each policy's weights.
            files: What belongs to the plugins' state.
            best: What is known of the best step, which is kept (`Best.state`).

        Raises:
            RunEnded: Another run has saved here meanwhile.
            OSError: A part is missing, or the manifest cannot be written.
        """
        parts = saved_folders(self.folder, policies, self.critics)
        manifest = {
            "schema": SCHEMA_VERSION,
            "step": step,
            "policies": dict(policies),
            "run": self.run,
            "changes": self.changes,
            "state": state,
            **({"best": dict(best)} if best else {}),
            "files": self._files(parts, step, files),
        }
        self.check_ours()
        text = json.dumps(sealed(manifest), indent=2) + "\n"
        replace_text(self.manifest_path, text)
        self.last_step, self._seen = step, text.encode()
        replace_text(manifest_of(self.folder, step), text)
        self._delete_old(parts, step, best.get("step", 0))

    def check_ours(self) -> None:
        """Checks that nothing of another run would be overwritten.

        Raises:
            RunEnded: Another run has saved here, which the lock prevents except on some network
                file systems.
        """
        if self._is_of_another_run():
            raise RunEnded(
                f"{self.manifest_path} was changed by another run that saves to the same "
                "--ckpt.path; give each a folder of its own"
            )

    def what_is_saved(self) -> str:
        """Returns, for the message of a run that ends early, from where it can be resumed, if from
        anywhere."""
        if self._is_of_another_run():
            return f"what is saved in {self.folder} is not this run's"
        if self.last_step is None or self._on_disk() is None:
            return (
                "no step was saved (--ckpt.save_steps N saves every N steps, without "
                "--ckpt.disable_ds)"
            )
        return (
            f"step {self.last_step} is saved in {self.folder}; resume with: "
            f"{how_to_resume(self.output)}"
        )

    def _on_disk(self) -> bytes | None:
        try:
            return read_bytes(self.manifest_path)
        except OSError:
            return None

    def _is_of_another_run(self) -> bool:
        return self._on_disk() not in (None, self._seen)

    def _files(
        self, parts: Iterable[Path], step: int, more: Iterable[Path]
    ) -> dict[str, tuple[int, str]]:
        """Size and digest of every file of a step, all of it on disk."""
        paths = sorted(more)
        for folder in (part / tag(step) for part in parts):
            mine = sorted(path for path in folder.rglob("*") if path.is_file())
            if not mine:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(folder))
            paths += mine
        contents = map_files(partial(content_of, flush=True), paths)
        for folder in {p for path in paths for p in path.parents if p.is_relative_to(self.folder)}:
            sync(folder)
        return {
            str(path.relative_to(self.folder)): content
            for path, content in zip(paths, contents, strict=True)
        }

    def _delete_old(self, parts: Iterable[Path], step: int, best: int) -> None:
        """Delete what is older than the steps that are kept, incomplete ones included; never what
        is newer."""
        saved = saved_steps(self.folder)
        complete = [n for n in saved if n <= step]
        kept = {*complete[-self.keep :], best}
        if gone := [n for n in complete if n not in kept]:
            files = {n: named_files(manifest_of(self.folder, n)) for n in saved}
            for old in gone:
                manifest_of(self.folder, old).unlink()
            for name in set[str]().union(*map(files.pop, gone)).difference(*files.values()):
                (self.folder / name).unlink(missing_ok=True)
        for part in parts:
            names = [
                re.fullmatch(r"global_step(\d+)", p.name) for p in part.iterdir() if p.is_dir()
            ]
            for old in (int(name.group(1)) for name in names if name):
                if old < step and old not in kept:
                    shutil.rmtree(part / tag(old))
                    shutil.rmtree(part.parent / f"{tag(old)}_hf", ignore_errors=True)


def content_of(path: Path, flush: bool = False) -> tuple[int, str]:
    """Returns the size and digest of a file.

    Args:
        flush: Wait until it is on disk.
    """
    with open_file(path) as file:
        if flush:
            os.fsync(file.fileno())
        digest = hashlib.file_digest(file, partial(hashlib.blake2b, digest_size=16))
        return file.tell(), digest.hexdigest()


def broken_files(folder: Path, manifest: Mapping[str, Any]) -> list[Problem]:
    """Returns the files of a saved step whose content is not what was saved."""
    files = manifest["files"]
    paths = [folder / name for name in files]
    return [
        Problem("files.unreadable", where=at(file=path), got=f"cannot be read: {actual.strerror}")
        if isinstance(actual, OSError)
        else Problem(
            "resume.damaged_file",
            where=at(file=path),
            got="is damaged: its content is not what was saved",
        )
        for path, saved, actual in zip(
            paths, files.values(), map_files(_content_or_error, paths), strict=True
        )
        if actual != tuple(saved)
    ]


def _content_or_error(path: Path) -> tuple[int, str] | OSError:
    try:
        return content_of(path)
    except OSError as error:
        return error


def map_files(function: Callable[[Path], T], paths: Sequence[Path]) -> list[T]:
    """Applies a function to each file; several are read at the same time."""
    with ThreadPoolExecutor(min(DIGEST_THREADS, os.cpu_count() or 1)) as pool:
        return list(pool.map(function, paths))
