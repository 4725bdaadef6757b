"""The table of how each release of upstream was tested here.

*Trained*: whole runs, in the tests and benchmarks. *Checked*: seams, flags and parser, a fit of
policy and critic, and upstream's own tests with our classes installed
(`marl_plugins.commands.upstream_ci`). A difference between releases is a version specifier on its
seam or flag (`releases` in `engine/hosts/seams.py` and `engine/hosts/flags.py`).
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from marl_plugins.core.problems import Problem, at

TRAINED = "0.11.2"
CHECKED = ("0.10.2", "0.10.3", "0.10.4", "0.11.0", "0.11.1")
WINDOWED = ">=0.10.4"
"""Releases whose loss is a mean over an optimiser step's tokens, with `loss_batch_info` in
`engine/hosts/seams.py`."""


def parsed(version: str) -> Version | None:
    """Returns a comparable version, or None (`unknown`, a branch's name)."""
    try:
        return Version(version)
    except InvalidVersion:
        return None


def concerns(releases: str, version: str) -> bool:
    """Returns whether a specifier such as `>=0.11.1` covers a release; an unreadable version counts
    as the trained one."""
    return SpecifierSet(releases).contains(parsed(version) or Version(TRAINED), prereleases=True)


def standing(version: str) -> str:
    """Returns how a release was tested, for people."""
    release = parsed(version)
    if version == TRAINED:
        return "trained: whole runs are tested with it"
    if version in CHECKED:
        return (
            "checked: seams, flags, a fit and upstream's own tests; runs are tested with " + TRAINED
        )
    if release is None:
        return "unknown version: only its seams can be checked"
    if release > Version(TRAINED):
        return f"newer than any release tested here ({TRAINED}): only its seams can be checked"
    return f"not tested ({CHECKED[0]} to {TRAINED} are): only its seams can be checked"


def known(version: str) -> bool:
    """Returns whether the release was trained or checked."""
    return version == TRAINED or version in CHECKED


def refusal(version: str) -> Problem | None:
    """Returns why several policies cannot be trained with a release, and the fix; None if they
    can."""
    if concerns(WINDOWED, version):
        return None
    got = (
        "its loss is the mean of each micro-batch's mean, so a micro-batch of weightless rows is "
        "0/0 and the windows cannot "
        "be filled"
    )
    fix = f"install openrlhf{WINDOWED}, preferably {TRAINED}"
    return Problem("upstream.loss", at(name=f"openrlhf {version}"), got, fix=fix)
