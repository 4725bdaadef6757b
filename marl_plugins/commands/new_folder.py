"""A folder that a command makes: it is new, and holds all of its files or is not there."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at


def taken(folder: Path) -> list[Problem]:
    """Returns the problem with a folder that is to be new and exists, or is a link to nowhere."""
    if not os.path.lexists(folder):
        return []
    fix = "give a folder that does not"
    return [Problem("files.exists", at(file=folder), "exists already", fix=fix)]


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Makes a problem of what the system says while a folder is written.

    Raises:
        ConfigurationError: It cannot be written.
    """
    try:
        yield
    except OSError as error:
        got = f"cannot be written: {error.strerror or error}"
        raise ConfigurationError(Problem("files.unwritable", at(file=folder), got)) from None


def write_files(files: Mapping[str, str], folder: Path) -> None:
    """Writes all files or none: first into a temporary folder next to the target, which is then
    renamed.

    Raises:
        ConfigurationError: They cannot be written.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
            complete = Path(temporary) / folder.name
            for name, text in files.items():
                path = complete / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            complete.rename(folder)
