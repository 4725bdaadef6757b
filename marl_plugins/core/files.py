"""Files that a run writes and reads again: a killed process, a full disk or a power cut leaves what
can be read.

replace_text   writes a file as a whole: it holds the old text or the new one (replace_bytes: the
               same of bytes)
replacing      the same of a file that a command writes for its user, piece by piece
open_file      opens a file to be read, if it is one: a pipe that nobody writes to would be waited
               for, for ever
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import encodable


def from_home(path: str) -> str:
    """Returns a path with the home folder for a `~` that begins it; anything else as it is."""
    return os.path.expanduser(path) if path.startswith("~/") else path


def cache_folder() -> Path:
    """Returns the folder of this user's caches."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def replace_text(path: Path, text: str) -> None:
    """Does what `replace_bytes` does, with a text.

    Half a surrogate pair, which a text may hold and UTF-8 may not, becomes the escape that JSON has
    for it.
    """
    replace_bytes(path, text.encode("utf-8", "backslashreplace"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Writes a file so that at any moment it holds the old content or the new one, also after a
    power cut."""
    fresh = path.with_name(path.name + ".new")
    try:
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, path)
    except OSError:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise
    sync(path.parent)


@contextlib.contextmanager
def replacing(file: Path, flag: str) -> Iterator[Path]:
    """Gives the path of a new file beside a file, which it replaces at the end where it is there:
    the file is there when all of it is, and an earlier one of its name stays until then.

    Args:
        flag: Names the file.

    Raises:
        ConfigurationError: It cannot be written.
    """
    part = file.with_name(f"{file.stem}.part{file.suffix}")
    try:
        if not file.parent.is_dir():  # some writers would make it, wherever a wrong letter leads
            raise FileNotFoundError(errno.ENOENT, "there is no such folder")
        if file.exists() and not file.is_file():  # a device or a pipe would be gone
            raise OSError(errno.EINVAL, "it is there, and no file")
        yield part
        if part.exists():
            os.replace(part, file)
    except OSError as error:
        got = f"cannot be written: {error.strerror or error}"
        raise ConfigurationError(
            Problem("files.unwritable", at(flag=flag, file=file), got)
        ) from None
    finally:
        # where nothing can be written, nothing can be removed either
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Waits until a file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_value(data: bytes) -> Any:
    """Returns the value of a JSON text in UTF-8.

    Raises:
        ValueError: It is none, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def finite(value: Any) -> Any:
    """Returns JSON values that every reader takes: None in the place of each number that is not
    finite, and the escape of half a surrogate pair."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case str():
            return encodable(value)
        case dict():
            return {encodable(key): finite(part) for key, part in value.items()}
        case list() | tuple():
            return [finite(part) for part in value]
    return value


def open_file(path: Path) -> BufferedReader:
    """Opens a file to be read.

    Raises:
        OSError: It cannot be read, or is a pipe, a socket, a folder or a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_bytes(path: Path) -> bytes:
    """Returns the content of a file; raises as `open_file`."""
    with open_file(path) as file:
        return file.read()
