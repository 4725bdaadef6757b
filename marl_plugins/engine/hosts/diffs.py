"""Unified diffs: read a patch, apply it, revert it. Every byte of a hunk must match; nothing is
guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at

_HUNK = re.compile(rb"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class DoesNotApply(Exception):
    """A hunk's old lines are neither at the stated place nor at exactly one other."""


@dataclass(frozen=True)
class Hunk:
    """Lines that replace others; `old_at` and `new_at` are the numbers of lines before them."""

    old_at: int
    old: tuple[bytes, ...]
    new_at: int
    new: tuple[bytes, ...]

    def reversed(self) -> Hunk:
        return Hunk(self.new_at, self.new, self.old_at, self.old)


@dataclass(frozen=True)
class Patch:
    """A patch file: its name without suffix, its first line, and its hunks by touched file."""

    name: str
    title: str
    hunks: Mapping[str, tuple[Hunk, ...]]


def split_lines(text: bytes) -> list[bytes]:
    """Returns lines with their ends; only a line feed ends a line, so that carriage returns are
    kept."""
    lines = text.split(b"\n")
    return [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


def read_patch(text: bytes, name: str) -> Patch:
    """Returns a patch that changes lines of existing files, after any header text.

    Raises:
        ConfigurationError: It is not such a patch, or incomplete.
    """
    lines = split_lines(text)
    hunks: dict[str, tuple[Hunk, ...]] = {}
    at = next((i for i, line in enumerate(lines) if line.startswith(b"diff --git ")), len(lines))
    while at < len(lines):
        if not lines[at].startswith(b"diff --git "):
            raise _not_understood(name, lines, at, "expected `diff --git a/FILE b/FILE`")
        paths = [line.rstrip(b"\n").decode() for line in lines[at + 1 : at + 3]]
        if [p[:6] for p in paths] != ["--- a/", "+++ b/"] or paths[0][6:] != paths[1][6:]:
            raise _not_understood(
                name, lines, at + 1, "expected `--- a/FILE` and `+++ b/FILE` of an existing file"
            )
        at += 3
        found = []
        while at < len(lines) and (match := _HUNK.match(lines[at])):
            hunk, at = _read_hunk(name, lines, at, match)
            found.append(hunk)
        hunks[paths[0][6:]] = tuple(found)
    if not hunks or not all(hunks.values()):
        raise _empty(name)
    return Patch(name, lines[0].decode().strip(), hunks)


def _read_hunk(
    name: str, lines: Sequence[bytes], at: int, match: re.Match[bytes]
) -> tuple[Hunk, int]:
    old_line, old_count, new_line, new_count = (
        1 if group is None else int(group) for group in match.groups()
    )
    old: list[bytes] = []
    new: list[bytes] = []
    sides = {b" ": (old, new), b"-": (old,), b"+": (new,)}
    last: tuple[list[bytes], ...] = ()
    at += 1
    while at < len(lines):
        mark, line = lines[at][:1], lines[at][1:]
        if mark == b"\\":  # "\ No newline at end of file" refers to the line before
            for side in last:
                side[-1] = side[-1].removesuffix(b"\n")
        elif mark in sides and (len(old), len(new)) != (old_count, new_count):
            last = sides[mark]
            for side in last:
                side.append(line)
        else:
            break
        at += 1
    if (len(old), len(new)) != (old_count, new_count):
        raise _not_understood(
            name,
            lines,
            at,
            f"the hunk has {len(old)} and {len(new)} lines, not {old_count} and {new_count}",
        )
    # A side without lines is numbered by the line before it.
    return Hunk(old_line - bool(old), tuple(old), new_line - bool(new), tuple(new)), at


def _empty(name: str) -> ConfigurationError:
    fix = "a patch has a line `diff --git a/FILE b/FILE` and hunks"
    return ConfigurationError(Problem("patches.empty", at(file=name), "changes nothing", fix=fix))


def _not_understood(name: str, lines: Sequence[bytes], number: int, why: str) -> ConfigurationError:
    found = (
        repr(lines[number].decode(errors="replace").rstrip()) if number < len(lines) else "the end"
    )
    got = f"line {number + 1} is not understood: {found}"
    return ConfigurationError(Problem("patches.syntax", at(file=name), got, fix=why))


def apply_hunks(text: bytes, hunks: Sequence[Hunk], *, reverse: bool = False) -> bytes:
    """Returns the text with all hunks applied, or with `reverse` removed.

    Raises:
        DoesNotApply: At least one of them does not.
    """
    lines = split_lines(text)
    result: list[bytes] = []
    done = shift = 0  # lines processed; distance of the last hunk from its stated place
    for hunk in hunks:
        wanted = hunk.reversed() if reverse else hunk
        at = _find_place(lines, wanted, done, shift)
        shift = at - wanted.old_at
        result += lines[done:at]
        result += wanted.new
        done = at + len(wanted.old)
    return b"".join(result + lines[done:])


def _find_place(lines: Sequence[bytes], hunk: Hunk, first: int, shift: int) -> int:
    """Returns where the hunk's old lines are: at the stated place, or at the only matching one
    (other patches move lines)."""

    def fits(at: int) -> bool:
        return first <= at <= len(lines) and tuple(lines[at : at + len(hunk.old)]) == hunk.old

    if fits(hunk.old_at + shift):
        return hunk.old_at + shift
    places = [at for at in range(first, len(lines)) if fits(at)] if hunk.old else []
    if len(places) != 1:
        raise DoesNotApply(f"{len(places)} places for the hunk of line {hunk.old_at + 1}")
    return places[0]
