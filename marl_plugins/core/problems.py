"""A problem says what is wrong, as a value: a code to know it by, its place, what was got, what was
expected, and the fix.

A check returns problems; the plan collects them and adds the recipe's lines
(engine/plan/problems.py). Only this module turns a problem into the sentence that people read
(`sentence`) and into JSON (`as_json`); nothing reads the sentence again.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal, NamedTuple

Severity = Literal["error", "warning"]

KINDS = (
    "line",
    "file",
    "folder",
    "command",
    "flag",
    "key",
    "policy",
    "role",
    "task",
    "tool",
    "plugin",
    "hook",
    "name",
)
"""Kinds of places; a `line` is `FILE:LINE`, or `command line`."""


class Place(NamedTuple):
    """A part of where a problem is: its kind, one of `KINDS`, and its name (flags without
    dashes)."""

    kind: str
    name: str


Where = tuple[Place, ...]
"""From the outermost place to the innermost, as in a recipe's line, its key, and the file that the
key names."""


def at(**places: str | Path | Iterable[str]) -> Where:
    """Returns a place from its kinds, in their order:
    `at(line="recipe.yaml:7", key="roles.judge.prompt")`.

    Args:
        places: By kind, a name or several. What is empty is left out.
    """
    if unknown := places.keys() - set(KINDS):
        raise ValueError(f"no kind of place: {', '.join(unknown)}")
    named = {
        kind: [str(names)] if isinstance(names, str | Path) else names
        for kind, names in places.items()
    }
    return tuple(Place(kind, name) for kind, names in named.items() for name in names if name)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or worth knowing.

    Args:
        code: Dotted and stable, as in `flags.unknown`; what programs and tests compare.
        where: Its place (`at`).
        got: What is there: with `expected` a value or a noun, otherwise a clause that says what is
            wrong.
        expected: A noun: what should be there.
        fix: What to do.
        severity: A warning prevents nothing.
        flags: Names of flags without dashes that it is about; the plan adds the recipe's lines on
            which they stand.
        count: Number of problems that it stands for, at the end of a long list.
    """

    code: str
    where: Where = ()
    got: str = ""
    expected: str = ""
    fix: str = ""
    severity: Severity = "error"
    flags: tuple[str, ...] = ()
    count: int = 1

    def __str__(self) -> str:
        return sentence(self)

    def within(self, **places: str | Path | Iterable[str]) -> Problem:
        """Returns the problem with a place around its own (see `at`)."""
        return replace(self, where=at(**places) + self.where)

    def as_warning(self) -> Problem:
        return replace(self, severity="warning")

    def as_error(self) -> Problem:
        return replace(self, severity="error")

    def names(self, kind: str) -> tuple[str, ...]:
        """Returns the names of its places of a kind."""
        return tuple(place.name for place in self.where if place.kind == kind)


def problem_of(problem: Problem | str) -> Problem:
    """Returns a problem itself; a plain sentence of a user's plugin or recipe gets the code
    `other`."""
    return problem if isinstance(problem, Problem) else Problem("other", got=problem)


def sentence(problem: Problem) -> str:
    """Returns a problem as people read it: `PLACE: expected EXPECTED, got GOT; FIX`, or
    `PLACE: GOT; FIX`; files below the working directory are relative to it."""
    got = problem.got
    if problem.expected:
        got = f"expected {problem.expected}, got {got}" if got else f"expected {problem.expected}"
    parts = [*_shown(problem.where), "; ".join(filter(None, (got, problem.fix)))]
    return with_relative_paths(": ".join(parts))


def with_relative_paths(text: str) -> str:
    """Returns a message in which files below the working directory are relative to it."""
    try:
        folder = os.getcwd()
    except FileNotFoundError:  # it has been removed
        return text
    return re.sub(rf"(?<![\w.~/-]){re.escape(folder)}/(?=\S)", "", text)


def _shown(where: Where) -> Iterator[str]:
    for kind, places in groupby(where, key=lambda place: place.kind):
        names = list(dict.fromkeys(place.name for place in places))
        match kind:
            case "flag":
                yield " and ".join(f"--{name}" for name in names)
            case "policy" | "role" | "tool":
                yield f"{kind} {', '.join(map(repr, names))}"
            case "plugin" | "task":
                yield f"{kind} {' or '.join(names)}"
            case _:
                yield ", ".join(names)


def as_json(problem: Problem) -> dict[str, Any]:
    """Returns a problem as a JSON object, for `--json`."""
    return {
        "code": problem.code,
        "where": [place._asdict() for place in problem.where],
        "got": problem.got,
        "expected": problem.expected,
        "fix": problem.fix,
        "severity": problem.severity,
        "flags": list(problem.flags),
        "sentence": sentence(problem),
    }


MAX_LISTED_NAMES = 20
"""Maximum number of problems listed per file."""


def first_of(problems: Sequence[Problem | str], place: str | Path) -> list[Problem]:
    """Returns the first problems of a file or folder, and one that counts the others."""
    left = len(problems) - MAX_LISTED_NAMES
    more = (
        [Problem("other.more", at(file=place), f"{left} more problems like these", count=left)]
        if left > 0
        else []
    )
    return [*map(problem_of, problems[:MAX_LISTED_NAMES]), *more]


def close_names(name: str, valid: Iterable[str]) -> list[str]:
    """Returns the valid name that is spelt most like another one; an empty list where none is
    close."""
    return difflib.get_close_matches(name, sorted(valid), n=1, cutoff=0.6)


def meant(name: str, valid: Iterable[str]) -> str:
    """Returns the fix of an unknown name: `did you mean 'x'?`, or all valid names where none is
    close and they are few."""
    names = sorted(valid)
    if close := close_names(name, names):
        return f"did you mean {close[0]!r}?"
    return "valid: " + ", ".join(names) if 0 < len(names) <= 12 else ""
