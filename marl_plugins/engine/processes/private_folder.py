"""A run's folder for sockets and logs that nobody else may open, and the removal of those that
killed runs have left.

A run holds a lock in its folder for as long as it lives. A folder whose lock nobody holds is
abandoned: the run was killed, and could remove neither the folder nor the processes that Ray had
    started for it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

PREFIX = "marl_"
HELD = "held"
"""Name of the file that a living run has locked."""


def short_path() -> str:
    """Returns the folder that those of runs lie in: paths of sockets have at most 107 characters,
    hence not $TMPDIR."""
    return os.environ.get("RAY_TMPDIR") or "/tmp"


@contextmanager
def private_folder(parent: str, *, kept: bool = False) -> Iterator[str]:
    """Provides a folder (0700) for the length of a run; those that were abandoned beside it are
    removed.

    Args:
        kept: It stays, for people to look into.
    """
    remove_abandoned(Path(parent))
    if kept:
        yield tempfile.mkdtemp(prefix=PREFIX, dir=parent)
        return
    with (
        tempfile.TemporaryDirectory(
            prefix=PREFIX, dir=parent, ignore_cleanup_errors=True
        ) as folder,
        _held(Path(folder)),
    ):
        yield folder


@contextmanager
def named_folder(path: str) -> Iterator[None]:
    """Provides such a folder under a name that is known elsewhere.

    Raises:
        FileExistsError: It is there.
    """
    remove_abandoned(Path(path).parent)
    os.mkdir(path, 0o700)
    try:
        with _held(Path(path)):
            yield
    finally:
        shutil.rmtree(path, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Removes the folders of runs that were killed, and ends the processes that have such a folder
    in their command line."""
    for folder in parent.glob(f"{PREFIX}*"):
        if is_abandoned(folder):
            end_users_of(folder)
            shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Returns whether a folder is one of this user's runs, and its run has gone."""
    try:
        if folder.lstat().st_uid != os.getuid() or folder.is_symlink():
            return False
        with (folder / HELD).open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    except OSError:  # held, no run's folder, or another run has just removed it
        return False


def end_users_of(folder: Path) -> None:
    """Ends the processes of this user that were started with files of a folder."""
    import psutil

    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.uids().real == os.getuid() and any(
                f"{folder}/" in word for word in process.cmdline()
            ):
                process.kill()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    fresh = folder / f"{HELD}.new"
    file: IO[bytes]
    with fresh.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # before it has the name by which others know it
        fresh.rename(folder / HELD)
        yield
