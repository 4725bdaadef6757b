"""Unified diffs of what each call of a tool changes in a workspace: `--file_diffs CHARACTERS`.

The folder of a trajectory is gone once it is scored; a diff is what is left of its files. Texts are
kept in memory until then, so both they and the diffs are bounded.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import File
from marl_plugins.core.workspace import Workspace, read_files

COMPARED_BYTES = 64 * 1024
"""Size of the largest file whose lines are compared."""
COMPARED_LINES = 1000
"""And its lines: comparing takes time with their square."""
KEPT_BYTES = 1024 * 1024
"""Size of all files of a workspace that are compared."""


class DiffedWorkspace:
    """A workspace that says of each call what it has changed. See `core.workspace.Workspace`.

    Args:
        workspace: The folder itself.
        most: Characters of a call's diff; what is longer is cut off, and says so.
    """

    def __init__(self, workspace: Workspace, most: int):
        self._workspace = workspace
        self._most = most
        self._files: dict[str, File] = {}
        self._texts: dict[str, str] = {}
        self._folder: Path | None = None
        self.diff = ""
        """What the last call has changed, as a unified diff."""
        self.turn = workspace.turn

    @property
    def files(self) -> tuple[File, ...]:
        return self._workspace.files

    async def opened(self) -> Path:
        folder = await self._workspace.opened()
        if self._folder is None:
            await self._look(folder)  # the task's own files are no change
            self._folder = folder
        return folder

    async def note(self, writer: str) -> tuple[str, ...]:
        self.diff = ""
        written = await self._workspace.note(writer)
        assert self._folder is not None
        before = self._files, self._texts
        await self._look(self._folder)
        self.diff = await asyncio.to_thread(self._compared, *before)
        return written

    async def _look(self, folder: Path) -> None:
        """Brings files and texts up to date; only what has changed is read.

        Raises:
            InfrastructureFailure: They cannot be read, and no program is to blame.
        """
        files = {file.path: file for file in self._workspace.files}
        same = {
            path
            for path, file in files.items()
            if path in self._files and self._files[path].sha256 == file.sha256
        }
        texts = {path: text for path, text in self._texts.items() if path in same}
        room = KEPT_BYTES - sum(files[path].size for path in texts)
        to_read = [
            path for path, file in files.items() if path not in same and file.size <= COMPARED_BYTES
        ]
        try:
            contents = await asyncio.to_thread(read_files, folder, to_read, room)
        except OSError as error:
            raise InfrastructureFailure("workspace", f"files of a workspace: {error}") from error
        for path, content in contents.items():
            with contextlib.suppress(UnicodeDecodeError):  # a binary file
                texts[path] = content.decode("utf-8")
        self._files, self._texts = files, texts

    def _compared(self, files: Mapping[str, File], texts: Mapping[str, str]) -> str:
        parts = []
        for path in sorted({*files, *self._files}):
            before, after = files.get(path), self._files.get(path)
            if before is None or after is None or before.sha256 != after.sha256:
                sides = _content(before, texts), _content(after, self._texts)
                parts.append(difference(path, *sides))
        return cut("".join(parts), self._most)


class Content(NamedTuple):
    """The content of a file.

    Args:
        size: In bytes.
        text: None: it is binary, or too large to be compared.
    """

    size: int
    text: str | None


ABSENT = Content(0, "")


def _content(file: File | None, texts: Mapping[str, str]) -> Content | None:
    return None if file is None else Content(file.size, texts.get(file.path))


def difference(path: str, before: Content | None, after: Content | None) -> str:
    """Writes what has changed in a file as a unified diff, which GNU patch and git apply.

    Args:
        before, after: None where there is none.
    """
    end = "\t" if " " in path else ""  # as git and GNU patch mark where such a name ends
    sides = f"a/{path}{end}" if before else "/dev/null", f"b/{path}{end}" if after else "/dev/null"
    head = f"--- {sides[0]}\n+++ {sides[1]}\n"
    old, new = (before or ABSENT).text, (after or ABSENT).text
    lines = None if old is None or new is None else (lines_of(old), lines_of(new))
    if lines is None or max(map(len, lines)) > COMPARED_LINES:
        sizes = [f"{side.size} bytes" if side else "absent" for side in (before, after)]
        return f"{head}not compared, binary or large: {sizes[0]} before, {sizes[1]} after\n"
    return head + "".join(_with_ends(islice(difflib.unified_diff(*lines), 2, None)))


def lines_of(text: str) -> list[str]:
    """Splits a text after its line feeds, and after no other character that Python takes for the
    end of a line."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def _with_ends(lines: Iterator[str]) -> Iterator[str]:
    for line in lines:
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def cut(text: str, most: int) -> str:
    """Cuts a text off after `most` characters, and says so on a line of its own."""
    return (
        text
        if len(text) <= most
        else f"{text[:most]}\n… and {len(text) - most:,} more characters\n"
    )
