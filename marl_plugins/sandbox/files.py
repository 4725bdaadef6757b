"""Files of a workspace, in which a program may have left anything.

No link is followed, and nothing that is no plain file is opened.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from marl_plugins.core.workspace import open_folder
from marl_plugins.sandbox.remote import MAX_FILE_NAMES, printable


def own_workspace(workspace: Path | None, workspaces: Path | None) -> Path | None:
    """Returns a kept workspace, as it is in the folder of all of them.

    Raises:
        ValueError: It is not in there.
    """
    if workspace is None:
        return None
    resolved = workspace.resolve(strict=True)
    if workspaces is None or workspaces not in resolved.parents:
        raise ValueError(
            f"workspace {resolved}: expected a folder in the sandbox's own, {workspaces}"
        )
    return resolved


def write_files(workspace: Path, files: Mapping[str, bytes]) -> None:
    """Writes files by their paths, making the folders that they lie in.

    Raises:
        OSError: It cannot be done, also where a part of the path is a link or no folder.
    """
    for path, content in files.items():
        *folders, name = path.split("/")
        with open_folder(workspace, folders, make=True) as folder:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=folder)  # what is there may be a link
            descriptor = os.open(
                name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=folder
            )
            with open(descriptor, "wb") as file:
                file.write(content)


def remove_files(workspace: Path, paths: Iterable[str]) -> None:
    """Removes files by their paths, and the folders that are empty without them.

    Raises:
        OSError: It cannot be done, also where a part of the path is a link.
    """
    for path in paths:
        *folders, name = path.split("/")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            with open_folder(workspace, folders) as folder:
                os.unlink(name, dir_fd=folder)
            while folders:
                *folders, name = folders
                with open_folder(workspace, folders) as folder:
                    try:
                        os.rmdir(name, dir_fd=folder)
                    except OSError:  # it holds other files
                        break


def first_names(workspace: Path) -> tuple[str, ...]:
    """Returns the first names in a workspace, such that they can be shown."""
    try:
        with open_folder(workspace, []) as folder:
            names = sorted(map(os.fsencode, os.listdir(folder)))
    except OSError:
        return ()
    return tuple(map(printable, names[:MAX_FILE_NAMES]))
