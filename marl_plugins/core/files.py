"""Files that a run writes, so that a killed process, a full disk or a power cut leaves what can be read.

replace_text   a file written as a whole: it holds the old text or the new one (replace_bytes: the same of bytes)
json_lines     a file that grows by lines: what was being written when the run ended is its last line
"""

from __future__ import annotations

import contextlib
import json
import os
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from marl_plugins.core.failures import ConfigurationError


def replace_text(path: Path, text: str) -> None:
    """`replace_bytes` of a text.

    Half a surrogate pair, which a text may hold and UTF-8 may not, becomes the escape that JSON has for it.
    """
    replace_bytes(path, text.encode("utf-8", "backslashreplace"))


def replace_bytes(path: Path, content: bytes) -> None:
    """Write a file so that at any moment it holds the old content or the new one, also after a power cut."""
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


def sync(path: Path) -> None:
    """Wait until a file's content, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def json_value(data: bytes) -> Any:
    """The value of a JSON text in UTF-8.

    Raises:
        ValueError: It is none, or nested too deeply.
    """
    try:
        return json.loads(data.decode("utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class Record(NamedTuple):
    """A line of a file that grows by lines; what follows it begins at the offset `end`."""

    number: int
    end: int
    value: dict[str, Any]

    @property
    def step(self) -> int:
        return int(self.value["step"])


def json_lines(path: Path) -> Iterator[Record]:
    """The records of a file, each an object with the number of its `step`, which never decreases.

    A last line that is no record is left out: a run that was killed, or whose disk was full, leaves a part of one.

    Raises:
        ConfigurationError: Another line is no record.
    """
    end, last, broken = 0, 0, ""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            end += len(line)
            if not line.strip():
                continue
            if broken:
                raise ConfigurationError(broken)
            try:
                record = Record(number, end, _record(line))
            except ValueError as error:
                broken = unusable_line(path, number, str(error))
                continue
            if record.step < last:
                raise ConfigurationError(
                    f"{path}:{number}: step {record.step} follows step {last}: this line or the one before it is damaged; remove "
                    "that line (what it recorded is lost), or restore the file from a copy"
                )
            last = record.step
            yield record


def unusable_line(path: Path, number: int, why: str) -> str:
    """The problem with a line of a file of records."""
    return (
        f"{path}:{number}: not a record of a run: {why}; remove this line (what it recorded is lost), or restore the file from "
        "a copy"
    )


def _record(line: bytes) -> dict[str, Any]:
    value = json_value(line)
    if not isinstance(value, dict):
        raise ValueError(f"expected an object, got {reprlib.repr(value)}")
    step = value.get("step")
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 <= step < 2**53 or step != int(step):
        raise ValueError(f"expected the number of a step as `step`, got {reprlib.repr(step)}")
    return value
