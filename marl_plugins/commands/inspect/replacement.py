"""A file that is there when all of it is: an earlier one of its name stays until then."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at


@contextmanager
def replacing(file: Path, flag: str) -> Iterator[Path]:
    """Gives the path of a new file beside a file, which it replaces at the end.

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
        os.replace(part, file)
    except OSError as error:
        raise ConfigurationError(
            Problem(
                "viewer.unwritable",
                at(flag=flag, file=file),
                f"cannot be written: {error.strerror or error}",
            )
        ) from None
    finally:
        with suppress(OSError):  # where nothing can be written, nothing can be removed either
            part.unlink(missing_ok=True)
