"""What a look at one thing comes to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """One line: what was looked at, whether it is good (None: a remark), what was found, and the cure."""

    what: str
    good: bool | None
    found: str
    cure: str = ""


def fine(what: str, found: str) -> Finding:
    return Finding(what, True, found)


def remark(what: str, found: str, cure: str = "") -> Finding:
    """Worth knowing, and no obstacle to training."""
    return Finding(what, None, found, cure)


def red(what: str, found: str, cure: str) -> Finding:
    """Training cannot work before this is mended; the cure is a command where there is one."""
    return Finding(what, False, found, cure)


def red_if(used: bool, what: str, found: str, cure: str) -> Finding:
    """Red where a run would use it, a remark where nothing says so."""
    return (red if used else remark)(what, found, cure)
