"""The files of one trajectory: a folder that its tools' programs share, and a manifest that says which action wrote what.

The folder is made at the first call that needs it, holds copies of the task's files (`Task.files`), and stays until the
trajectory is scored. After every call it is looked through: what is new or changed belongs to the action that made the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.folders import remove
from marl_plugins.core.trajectory import File, Task

MOST_FILES = 2000
"""Files beyond that are not looked at, and the call that left them has failed."""
Mark = tuple[int, int, int, int]
"""What a file cannot keep when it is changed: inode, bytes, times of the change in ns, of the content and of the entry. The
last one is the kernel's; programs cannot set it."""


class TooManyFiles(Exception):
    """A program left more files than a workspace may hold."""


@dataclass(frozen=True)
class _Known:
    file: File
    mark: Mark


class Workspace:
    """The folder of one trajectory; use it as an asynchronous context.

    Args:
        task: Whose files are copied into it.
    """

    def __init__(self, task: Task):
        self._task = task
        self._folder: Path | None = None
        self._known: dict[str, _Known] = {}
        self.turn = asyncio.Lock()
        """Held during a call, so that what appears meanwhile is that call's."""

    @property
    def folder(self) -> Path | None:
        """None until a call has needed it."""
        return self._folder

    @property
    def files(self) -> tuple[File, ...]:
        """The manifest, by path."""
        return tuple(known.file for _, known in sorted(self._known.items()))

    async def opened(self) -> Path:
        """The folder, made now if it was not there.

        Raises:
            InfrastructureFailure: There is no room for it, or a file of the task cannot be read.
        """
        if self._folder is None:
            try:
                self._folder = await asyncio.to_thread(self._make)
            except OSError as error:
                what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
                raise InfrastructureFailure("workspace", f"no workspace for task {self._task.id}: {what}") from error
            await self.note("")
        return self._folder

    def _make(self) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="marl-workspace-"))
        try:
            for name, source in self._task.files.items():
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
        except OSError:
            remove(folder)
            raise
        return folder

    async def note(self, writer: str) -> tuple[str, ...]:
        """Bring the manifest up to date: what has appeared or changed since the last time was written by `writer`.

        Returns:
            The paths of what has appeared or changed.

        Raises:
            TooManyFiles: There are more than `MOST_FILES`; the manifest is as it was.
        """
        assert self._folder is not None
        before, self._known = self._known, await asyncio.to_thread(scan, self._folder, writer, self._known)
        return tuple(
            sorted(path for path, known in self._known.items() if path not in before or known.file != before[path].file)
        )

    async def __aenter__(self) -> Workspace:
        return self

    async def __aexit__(self, *error: object) -> None:
        folder, self._folder = self._folder, None
        if folder is not None:
            with contextlib.suppress(OSError):  # what cannot be removed is left: no run ends for it
                await asyncio.shield(asyncio.to_thread(remove, folder))


def scan(folder: Path, writer: str, known: dict[str, _Known]) -> dict[str, _Known]:
    """The regular files below a folder, by path; only those that have changed since they were `known` are read.

    Links are not followed: they are no files of the folder's own. What cannot be read as a path in UTF-8 is not listed.
    """
    found: dict[str, _Known] = {}
    for path, entry in sorted(_walk(folder)):
        mark = _mark(entry)
        last = known.get(path)
        if last is not None and last.mark == mark:
            found[path] = last
            continue
        try:
            digest = _digest(folder / path)
        except OSError:  # made unreadable, or gone meanwhile
            continue
        same = last is not None and last.file.sha256 == digest
        found[path] = _Known(last.file if same and last else File(path, entry.st_size, digest, writer), mark)
    return found


def _mark(entry: os.stat_result) -> Mark:
    return entry.st_ino, entry.st_size, entry.st_mtime_ns, entry.st_ctime_ns


def _walk(folder: Path) -> list[tuple[str, os.stat_result]]:
    found: list[tuple[str, os.stat_result]] = []
    waiting = [""]
    while waiting:
        here = waiting.pop()
        try:
            entries = list(os.scandir(folder / here))
        except OSError:  # too deep, or made unreadable
            continue
        for entry in entries:
            path = f"{here}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                waiting.append(f"{path}/")
            elif entry.is_file(follow_symlinks=False) and path.isprintable():
                found.append((path, entry.stat(follow_symlinks=False)))
            if len(found) + len(waiting) > MOST_FILES:
                raise TooManyFiles(f"more than {MOST_FILES} files and folders in the workspace")
    return found


def _digest(path: Path) -> str:
    """SHA-256 of a regular file, which is not waited for where it has become something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        return hashlib.file_digest(file, "sha256").hexdigest()
