"""Removing what programs leave, whatever that is. Standard library only, as in supervisor.py."""

import os
import stat


def remove(path: str) -> None:
    """Removes a folder or a file, if it is there: without recursion, without following links,
    whatever its rights are.

    Raises:
        OSError: It cannot be removed.
    """
    try:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            return os.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    folder = open_folder(path)
    try:
        empty(folder)
    finally:
        os.close(folder)
    return os.rmdir(path)


def empty(top: int) -> None:
    """Removes all that is in a folder. Folders move up into it before they are emptied, so that no
    path gets long."""
    fresh, number = os.urandom(8).hex(), 0
    while entries := list(os.scandir(top)):
        for entry in entries:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(entry.name, dir_fd=top)
                continue
            folder = open_folder(entry.name, top)
            try:
                for inner in list(os.scandir(folder)):
                    if inner.is_dir(follow_symlinks=False):
                        os.close(
                            open_folder(inner.name, folder)
                        )  # one that may not be written may not be moved either
                        number += 1
                        os.rename(inner.name, f"{fresh}{number}", src_dir_fd=folder, dst_dir_fd=top)
                    else:
                        os.unlink(inner.name, dir_fd=folder)
            finally:
                os.close(folder)
            os.rmdir(entry.name, dir_fd=top)


def open_folder(path: str, within: int | None = None) -> int:
    """Returns a folder's descriptor, after its owner was given all rights; never that of a folder
    that a link leads to."""
    descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    try:
        if stat.S_IMODE(os.stat(descriptor).st_mode) & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)
    finally:
        os.close(descriptor)
