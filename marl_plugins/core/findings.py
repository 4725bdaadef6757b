"""Findings of checks: the lines of `openrlhf doctor` and `openrlhf compat`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from marl_plugins.core.problems import Problem, Where


@dataclass(frozen=True)
class Finding:
    """One line: what was checked, whether it is good (None: worth knowing, not an error), what was
    found, and the fix."""

    what: str
    good: bool | None
    found: str
    fix: str = ""


def ok(what: str, text: str) -> Finding:
    return Finding(what, True, text)


def note(what: str, text: str, fix: str = "") -> Finding:
    """Makes a note: worth knowing; nothing fails because of it."""
    return Finding(what, None, text, fix)


def error(what: str, text: str, fix: str) -> Finding:
    """Makes an error: nothing works until this is fixed; the fix is a command where one exists."""
    return Finding(what, False, text, fix)


def error_if(used: bool, what: str, text: str, fix: str) -> Finding:
    """Makes an error if a run would use it, otherwise a note."""
    return (error if used else note)(what, text, fix)


def all_good(findings: Iterable[Finding]) -> bool:
    """Returns whether no finding is an error."""
    return all(finding.good is not False for finding in findings)


def missing_extra(extra: str, module: str, where: Where) -> list[Problem]:
    """Returns the problem with what needs an extra of this package, where that is not installed.

    Args:
        module: That it brings.
    """
    if find_spec(module) is not None:
        return []
    got, fix = f"{module} is not installed", f"pip install 'openrlhf-marl[{extra}]'"
    return [Problem("recipe.extra", where, got, fix=fix)]


def check_extra(extra: str, modules: Sequence[str], what: str, used: bool) -> Finding:
    """Reports whether an extra of this package is installed; a missing one is an error if a run
    would use it.

    Args:
        modules: The modules that it brings.
        what: Its purpose.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if not missing:
        return ok("extras", f"{extra}: installed, for {what}")
    return error_if(
        used,
        "extras",
        f"{', '.join(missing)} not installed, for {what}",
        f"pip install 'openrlhf-marl[{extra}]'",
    )
