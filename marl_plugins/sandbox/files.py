"""Files of a workspace, in which a program may have left anything.

No link is followed, and nothing that is no plain file is opened.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from marl_plugins.sandbox.remote import printable

NAMES, NAME_BYTES = 50, 5000
"""Maximum number of names that are listed, and of bytes in them."""
LISTED = 1000
"""Maximum number of names that are looked at."""
OURS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO)
"""Errors that no program is to blame for, whatever it has left: what lies there is not absent."""
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def write_files(workspace: Path, files: Mapping[str, bytes]) -> None:
    """Write files by their paths, making the folders that they lie in.

    Raises:
        OSError: It cannot be done, also where a part of the path is a link or no folder.
    """
    for path, content in files.items():
        *folders, name = path.split("/")
        with _folder(workspace, folders, make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)  # what is there may be a link
            descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder)
            with open(descriptor, "wb") as file:
                file.write(content)


def remove_files(workspace: Path, paths: Iterable[str]) -> None:
    """Remove files by their paths, and the folders that are empty without them.

    Raises:
        OSError: It cannot be done, also where a part of the path is a link.
    """
    for path in paths:
        *folders, name = path.split("/")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with _folder(workspace, folders) as folder:
                os.unlink(name, dir_fd=folder)
            while folders:
                *folders, name = folders
                with _folder(workspace, folders) as folder:
                    try:
                        os.rmdir(name, dir_fd=folder)
                    except OSError:  # it holds other files
                        break


def read_files(workspace: Path, paths: Iterable[str], most: int) -> dict[str, bytes]:
    """The plain files among these paths, as far as they have `most` bytes together.

    Raises:
        OSError: They cannot be read, and no program is to blame.
    """
    found = {}
    for path in paths:
        *folders, name = path.split("/")
        try:
            with _folder(workspace, folders) as folder:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
                with open(descriptor, "rb") as file:
                    status = os.fstat(descriptor)
                    if stat.S_ISREG(status.st_mode) and status.st_size <= most:
                        found[path] = file.read(most)
                        most -= len(found[path])
        except OSError as error:  # it is not there, or is none that may be read
            if error.errno in OURS:
                raise
            continue
    return found


def first_names(workspace: Path) -> tuple[str, ...]:
    """The first names in a workspace, such that they can be shown."""
    found: list[str] = []
    try:
        with _folder(workspace, []) as folder, os.scandir(folder) as entries:
            names = sorted(os.fsencode(entry.name) for entry in itertools.islice(entries, LISTED))
    except OSError:
        return ()
    for name in names[:NAMES]:
        shown = printable(name)
        if sum(map(len, found)) + len(shown) > NAME_BYTES:
            break
        found.append(shown)
    return tuple(found)


@contextlib.contextmanager
def _folder(workspace: Path, folders: Iterable[str], make: bool = False) -> Iterator[int]:
    """The descriptor of a folder below the workspace, reached step by step."""
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
