"""What a check found: the lines of `openrlhf doctor` and `openrlhf compat`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, whether it is good (None: worth knowing, not an error), what was found, and the fix."""

    what: str
    good: bool | None
    found: str
    fix: str = ""


def ok(what: str, found: str) -> Finding:
    return Finding(what, True, found)


def note(what: str, found: str, fix: str = "") -> Finding:
    """Worth knowing; nothing fails because of it."""
    return Finding(what, None, found, fix)


def error(what: str, found: str, fix: str) -> Finding:
    """Nothing works until this is fixed; the fix is a command where one exists."""
    return Finding(what, False, found, fix)


def error_if(used: bool, what: str, found: str, fix: str) -> Finding:
    """An error if a run would use it, otherwise a note."""
    return (error if used else note)(what, found, fix)


def all_good(findings: Iterable[Finding]) -> bool:
    """Whether no finding is an error."""
    return all(finding.good is not False for finding in findings)
