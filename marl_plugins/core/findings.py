"""What a look at one thing comes to: the lines of `openrlhf doctor` and `openrlhf compat`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is good (None: a remark), what was found, and what to do."""

    what: str
    good: bool | None
    found: str
    cure: str = ""


def fine(what: str, found: str) -> Finding:
    return Finding(what, True, found)


def remark(what: str, found: str, cure: str = "") -> Finding:
    """Worth knowing, and no obstacle."""
    return Finding(what, None, found, cure)


def red(what: str, found: str, cure: str) -> Finding:
    """Nothing can work before this is mended; the cure is a command where there is one."""
    return Finding(what, False, found, cure)


def all_good(findings: Iterable[Finding]) -> bool:
    """Whether no line is red."""
    return all(finding.good is not False for finding in findings)


def red_if(used: bool, what: str, found: str, cure: str) -> Finding:
    """Red where a run would use it, a remark where nothing says so."""
    return (red if used else remark)(what, found, cure)
