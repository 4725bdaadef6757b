"""Workspaces: the files of one trajectory, in a folder that its tools' programs share, and who
wrote them.

The folder is made at the first call that needs it, holds copies of the task's files (`Task.files`),
and stays until the trajectory is scored. After every call it is looked through: what is new or
changed belongs to the action that made the call.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.threads import DaemonThreads
from marl_plugins.core.trajectory import File, Task
from marl_plugins.core.workspace import MAX_WORKSPACE_FILES, OURS, TooManyFiles
from marl_plugins.sandbox.remote import plain_files
from marl_plugins.sandbox.removal import remove
from marl_plugins.sandbox.server import new_root

Mark = tuple[int, int, int, int]
"""What a file cannot keep when it is changed: inode, bytes, times of the change in ns, of the
content and of the entry. The last one is the kernel's; programs cannot set it."""


class Workspaces:
    """The workspaces of one run, in a folder of its own."""

    def __init__(self) -> None:
        self._root: Path | None = None
        self._making = threading.Lock()
        self.threads = DaemonThreads()
        """Which read the tasks' files, from whatever disk they are on."""

    @property
    def root(self) -> Path:
        """The folder in which they lie, made now if it was not there.

        Raises:
            InfrastructureFailure: There is no room for it.
        """
        with self._making:  # workspaces are made in threads
            self._root = self._root or new_root(shared=os.getuid() == 0)
            return self._root

    def of(self, task: Task) -> ProgramWorkspace:
        """Makes a new one."""
        return ProgramWorkspace(task, self)

    def close(self) -> None:
        """Removes them all."""
        root, self._root = self._root, None
        if root is not None:
            with contextlib.suppress(OSError):  # a file that is still copied into it
                remove(os.fspath(root))


@dataclass(frozen=True)
class _KnownFile:
    file: File
    mark: Mark


class ProgramWorkspace:
    """The folder of one trajectory, an asynchronous context. See `core.tools.Workspace`."""

    def __init__(self, task: Task, workspaces: Workspaces):
        self._task = task
        self._workspaces = workspaces
        self._folder: Path | None = None
        self._opening: asyncio.Task[Path] | None = None
        self._known: dict[str, _KnownFile] = {}
        self.turn = asyncio.Lock()

    @property
    def files(self) -> tuple[File, ...]:
        """The manifest, by path."""
        return tuple(known.file for _, known in sorted(self._known.items()))

    async def opened(self) -> Path:
        """Returns the folder, made now if it was not there.

        Raises:
            InfrastructureFailure: There is no room for it, or a file of the task cannot be read.
        """
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(
            self._opening
        )  # a call that is given up leaves it to the next one

    async def _open(self) -> Path:
        try:
            self._folder = await self._workspaces.threads.call(self._make)
        except OSError as error:
            what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            raise InfrastructureFailure(
                "workspace", f"no workspace for task {self._task.id}: {what}"
            ) from error
        await self.note("")
        return self._folder

    def _make(self) -> Path:
        folder = Path(tempfile.mkdtemp(dir=self._workspaces.root))
        try:
            for name, source in self._task.files.items():
                place = folder / name
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, place)
        except OSError:
            remove(os.fspath(folder))
            raise
        return folder

    async def note(self, writer: str) -> tuple[str, ...]:
        """Brings the manifest up to date: what has appeared or changed since the last time was
        written by `writer`.

        Returns:
            The paths of what has appeared or changed.

        Raises:
            TooManyFiles: There are more than `MAX_WORKSPACE_FILES`; the manifest is as it was.
            InfrastructureFailure: They cannot be read, and no program is to blame; likewise.
        """
        assert self._folder is not None
        try:
            before, self._known = (
                self._known,
                await asyncio.to_thread(scan, self._folder, writer, self._known),
            )
        except OSError as error:
            raise InfrastructureFailure(
                "workspace", f"the workspace of task {self._task.id}: {error}"
            ) from error
        return tuple(
            sorted(
                path
                for path, known in self._known.items()
                if path not in before or known.file != before[path].file
            )
        )

    async def __aenter__(self) -> ProgramWorkspace:
        return self

    async def __aexit__(self, *error: object) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            removing = asyncio.create_task(_removed(opening))
            if opening.done():  # else it is still copied, and removed when it is
                await asyncio.shield(removing)


async def _removed(opening: asyncio.Task[Path]) -> None:
    with contextlib.suppress(
        OSError, InfrastructureFailure
    ):  # what cannot be removed is left: no run ends for it
        await asyncio.to_thread(remove, os.fspath(await opening))


def scan(folder: Path, writer: str, known: dict[str, _KnownFile]) -> dict[str, _KnownFile]:
    """Returns the regular files below a folder, by path; only those that have changed since they
    were `known` are read.

    Raises:
        OSError: It cannot be read, and no program is to blame.
        TooManyFiles: There are more than `MAX_WORKSPACE_FILES`.
    """
    paths, entries, _ = plain_files(os.fspath(folder), MAX_WORKSPACE_FILES, OURS)
    if entries > MAX_WORKSPACE_FILES:
        raise TooManyFiles(f"more than {MAX_WORKSPACE_FILES} files and folders in the workspace")
    files: dict[str, _KnownFile] = {}
    for path in sorted(paths):
        last = known.get(path)
        try:
            now = os.lstat(folder / path)
            mark = now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
            if last is None or last.mark != mark:
                file = File(path, now.st_size, _digest(folder / path), writer)
                same = last is not None and last.file.sha256 == file.sha256
                last = _KnownFile(last.file if same and last else file, mark)
        except OSError as error:  # made unreadable, or gone meanwhile
            if error.errno in OURS:
                raise
        else:
            files[path] = last
    return files


def _digest(path: Path) -> str:
    """SHA-256 of a regular file, which is not waited for where it has become something else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError("not a regular file")
        return hashlib.file_digest(file, "sha256").hexdigest()
