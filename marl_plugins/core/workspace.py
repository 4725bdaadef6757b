"""Workspaces: the files of one trajectory, in a folder that its tools share; their paths, and how
they are read.

A program may have left anything there: no link is followed, and nothing that is no plain file is
opened.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import stat
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Protocol

from marl_plugins.core.trajectory import File

MAX_WORKSPACE_FILES = 2000
"""Files beyond that are not looked at, and the call that left them has failed."""
LONGEST_PATH_BYTES, LONGEST_NAME_BYTES = 1024, 255
"""Maximum number of bytes in a file's path, and in each part of it (NAME_MAX of linux/limits.h)."""
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Errors that no program is to blame for, whatever it has left: what lies there is not absent."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class TooManyFiles(Exception):
    """A call left more files than a workspace may hold."""


class Workspace(Protocol):
    """The folder of one trajectory, while that lasts: an asynchronous context
    (`Tool.workspaces`)."""

    turn: asyncio.Lock
    """Held during a call, so that what appears meanwhile is that call's."""

    @property
    def files(self) -> tuple[File, ...]:
        """The manifest, by path."""

    async def opened(self) -> Path:
        """Returns the folder, made now if it was not there.

        Raises:
            InfrastructureFailure: There is no room for it, or a file of the task cannot be read.
        """

    async def note(self, writer: str) -> tuple[str, ...]:
        """Brings the manifest up to date: what has appeared or changed since the last time was
        written by `writer`.

        Returns:
            The paths of what has appeared or changed.

        Raises:
            TooManyFiles: The manifest is as it was.
            InfrastructureFailure: They cannot be read; likewise.
        """


def path_problem(path: str) -> str:
    """Returns why a path is none of a file in a workspace; empty where it is one."""
    parts = path.split("/")
    if path.startswith("/"):
        return "is absolute; expected one in the workspace"
    if ".." in parts:
        return "leaves the workspace"
    if not all(part not in ("", ".") for part in parts):
        return "has an empty part or `.`"
    if not path.isprintable():
        return "has characters that cannot be shown"
    if any(len(part.encode()) > LONGEST_NAME_BYTES for part in parts):
        return f"has a name longer than {LONGEST_NAME_BYTES} bytes"
    return (
        f"is longer than {LONGEST_PATH_BYTES} bytes"
        if len(path.encode()) > LONGEST_PATH_BYTES
        else ""
    )


def folders_of(paths: Collection[str]) -> set[str]:
    """Returns the folders that files lie in, by the files' paths."""
    return {str(folder) for path in paths for folder in PurePosixPath(path).parents} - {"."}


def tree_problem(paths: Collection[str]) -> str:
    """Returns why files cannot lie in one workspace, by their paths, of which none has a
    `path_problem`; empty where they can."""
    both = min(folders_of(paths) & set(paths), default="")
    return f"{both[:200]!r} is a file and a folder" if both else ""


def read_files(workspace: Path, paths: Iterable[str], most: int) -> dict[str, bytes]:
    """Returns the plain files among these paths, as far as they have `most` bytes together. No link
    is followed.

    Raises:
        OSError: They cannot be read, and no program is to blame.
    """
    contents = {}
    for path in paths:
        *folders, name = path.split("/")
        try:
            with open_folder(workspace, folders) as folder:
                descriptor = os.open(
                    name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder
                )
                with open(descriptor, "rb") as file:
                    status = os.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
                        contents[path] = file.read(most)
                        most -= len(contents[path])
        except OSError as error:  # it is not there, or is none that may be read
            if error.errno in OURS:
                raise
            continue
    return contents


@contextlib.contextmanager
def open_folder(workspace: Path, folders: Iterable[str], make: bool = False) -> Iterator[int]:
    """Opens a folder below the workspace, reached step by step, and yields its descriptor."""
    descriptor = os.open(workspace, FOLDER)
    try:
        for name in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=descriptor)
            below = os.open(name, FOLDER, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
        yield descriptor
    finally:
        os.close(descriptor)
